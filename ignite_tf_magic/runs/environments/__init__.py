"""Python environments for workers, built on the hosts from a project's requirements."""
