"""The examples run, and say what they should."""

import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def run(name, *args):
    words = [sys.executable, str(EXAMPLES / name), *args]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout


def test_many_files_are_written_and_read(cluster, fs, scratch):
    assert run("many_at_once.py", cluster, scratch) == "100 files written and read\n"
    for path in (f"{scratch}/{number}" for number in range(90)):
        fs.unlink(path)
    size = len(f"{scratch}/99")
    said = run("samples.py", cluster, scratch, str(size))
    assert said.startswith(f"10 samples, {10 * size} bytes, mean ")
