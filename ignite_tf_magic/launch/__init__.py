"""Starts and watches processes on hosts, over SSH or on this machine."""
