"""All risk of threads and ABI: CPython objects seen from compiled code, the driver, worker threads, result memory."""
