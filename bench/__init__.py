"""The benchmark: how fast every operation is, beside the peers and beside what the memory allows.

`python -m bench --help` in the repository; `fastq bench` where fastq is installed; `pytest bench`.
"""
