"""A Spark session for the tests that need one."""

import os
import shutil
import sys

import pytest


@pytest.fixture(scope="session")
def spark():
    """A Spark session with two threads on this machine."""
    sql = pytest.importorskip("pyspark.sql", reason="encoding on Spark is NOT tested: pyspark is not installed")
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        pytest.skip("encoding on Spark is NOT tested: there is no Java (apt-get install openjdk-17-jre-headless)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        yield session
        session.stop()
