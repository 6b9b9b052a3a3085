"""The benchmark: the speed of every operation, compared with the peers and with the limit of the memory.

`python -m bench --help` in the repository; `fastq bench` where fastq is installed; `pytest bench`.
"""
