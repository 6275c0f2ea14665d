import os
import subprocess
import sys

import pytest

from dish.errors import InputError
from dish.ray import cluster

SCRIPT = """
import os
names = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
from dish.ray import cluster
import psutil
me = psutil.Process()
with cluster(cpus=1) as ray:
    print(ray.get(ray.remote(lambda: 3).remote()))
    ours = [me, *me.children(recursive=True)]
    for process in ours:
        for connection in process.net_connections("inet"):
            if connection.status == "LISTEN":
                print("listens", connection.laddr.ip)
    print("mode", os.environ["RAY_AUTH_MODE"])
    with cluster() as same:  # the connection that exists
        assert same is ray
    assert ray.is_initialized()
gone, alive = psutil.wait_procs(ours[1:], 10)
print("left", [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE])
print("environment", [name for name in names if name in os.environ])
"""


@pytest.mark.engines
def test_a_ray_of_this_machine_is_closed_to_others():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    hosts = {line.removeprefix("listens ") for line in lines if line.startswith("listens")}
    assert len([line for line in lines if line.startswith("listens")]) > 5
    assert hosts <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert [line for line in lines if not line.startswith("listens")] == [
        "3",
        "mode token",
        "left []",
        "environment []",
    ]


@pytest.mark.engines
def test_a_client_without_the_token_is_refused(ray):
    address = ray.get_runtime_context().gcs_address
    script = f"import ray; ray.init(address={address!r}, logging_level='error')"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert found.returncode != 0
    assert "token" in found.stderr.lower() or "auth" in found.stderr.lower()


@pytest.mark.engines
def test_ray_that_would_listen_on_the_network_is_not_started():
    script = "import ray\nfrom dish.ray import cluster\nwith cluster(): pass"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "ClusterError: ray was imported before, and would now listen on" in found.stderr


@pytest.mark.engines
def test_a_call_without_a_connection_does_not_import_ray():
    """So that a connection can still be made."""
    script = "import sys\nfrom dish.ray.connection import connected_ray\ntry: connected_ray('open_shards')\n"
    script += "except Exception as error: print(type(error).__name__, error, 'ray' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert found.stdout.startswith("ClusterError there is no connection to Ray: call open_shards inside"), found
    assert found.stdout.endswith("False\n")


def test_the_number_of_cpus_is_checked():
    with pytest.raises(InputError, match="cpus must be"), cluster(cpus=0):
        pass


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'dish-hash\[ray\]'"), cluster():
        pass
