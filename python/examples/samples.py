"""Reads many small files with few requests, into one array.

python samples.py HOST:PORT[,HOST:PORT...] DIRECTORY BYTES
"""

import sys

import numpy

import weft


def main(cluster, directory, size):
    """Tells how many files of the directory have what mean."""
    with weft.connect(cluster) as fs:
        paths = [entry.path for entry in fs.scandir(directory) if entry.is_file()]
        samples = numpy.empty((len(paths), size), "u1")
        lengths = fs.read_batch(paths, out=samples)
    print(f"{len(paths)} samples, {sum(lengths)} bytes, mean {samples.mean():.2f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
