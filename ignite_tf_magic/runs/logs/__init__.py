"""Output of workers: log files on hosts, and byte-for-byte copies of them."""
