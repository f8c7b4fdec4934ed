"""A standalone Spark cluster on loopback: a master and two workers with one core each."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from tests.publish.s3_server import find_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_START_SECONDS: Final = 120


@contextmanager
def start_cluster(environment: Path, folder: Path) -> Iterator[str]:
    """Yield the URL of the master. Needs a Java runtime; its processes end with the block."""
    java = shutil.which("java")
    if java is None:
        message = "Spark needs a Java runtime: install default-jre-headless"
        raise RuntimeError(message)
    (home,) = environment.glob("lib/python*/site-packages/pyspark")
    master_port, *ui_ports = (find_port() for _ in range(4))
    variables = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.12"}
    variables |= {"PYSPARK_PYTHON": str(environment / "bin" / "python"), "SPARK_WORKER_DIR": str(folder / "work")}
    url = f"spark://127.0.0.1:{master_port}"
    base = [java, "-cp", f"{home}/jars/*", "-Xmx256m"]
    master = ["org.apache.spark.deploy.master.Master", "--port", str(master_port), "--webui-port", str(ui_ports[0])]
    commands = [[*base, *master, "--host", "127.0.0.1"]]
    for port in ui_ports[1:]:
        worker = ["--cores", "1", "--memory", "1g", "--webui-port", str(port), url]
        commands.append([*base, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", *worker])
    log = folder / "master.log"
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        for command in commands:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
            stack.callback(process.wait)
            stack.callback(process.kill)
            if command is commands[0]:
                wait_for(log, "Starting Spark master", 1)
        wait_for(log, "Registering worker", 2)
        yield url


def wait_for(log: Path, text: str, times: int) -> None:
    """Wait until a text is so many times in a log. Raises `TimeoutError`."""
    end = time.monotonic() + _START_SECONDS
    while log.read_text(errors="replace").count(text) < times:
        if time.monotonic() > end:
            raise TimeoutError(text)
        time.sleep(0.2)
