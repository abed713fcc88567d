"""Processes on hosts: what to start (`base`), and how on this machine (`local`)."""
