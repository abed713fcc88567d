"""Real kernels, driven over the Jupyter protocol."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from queue import Empty

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager


@dataclass
class CellResult:
    """The results of a cell: text streams, displayed data, and the error that ended it."""

    stdout: str = ""
    stderr: str = ""
    shown: list[dict[str, object]] = field(default_factory=list)
    error: dict[str, object] | None = None

    @property
    def text(self) -> str:
        """The text that a front end without HTML shows."""
        return self.stdout + "".join(f"{data.get('text/plain', '')}\n" for data in self.shown)

    @property
    def lines(self) -> list[str]:
        """The lines that a user sees. Overwritten text is not included."""
        return screen(self.stdout)


def screen(stream: str) -> list[str]:
    """Return the lines that a terminal shows after all of `stream`."""
    lines, column = [""], 0
    for char in re.sub(r"\x1b\[\d*m", "", stream):
        if char == "\n":
            lines.append("")
            column = 0
        elif char == "\r":
            column = 0
        else:
            lines[-1] = lines[-1][:column].ljust(column) + char + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


class Kernel:
    """A kernel of this interpreter."""

    def __init__(self, env, cwd, *, has_person=False):
        self.manager = KernelManager(kernel_name="python3")
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"]
        self.manager._kernel_spec = KernelSpec(argv=argv, language="python", display_name="here")
        self.manager.start_kernel(env=env, cwd=str(cwd))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.allow_stdin = has_person  # true in notebooks, false in nbclient and papermill
        self.client.wait_for_ready(timeout=300)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def run(
        self, code, *, on_stdout=lambda text: None, on_shown=lambda data: None, timeout_s=300
    ) -> CellResult:
        """Execute a cell. Call `on_stdout` with all text so far after each output, `on_shown` with displayed data."""
        message = self.client.execute(code)
        result, places = CellResult(), {}
        while True:
            try:
                reply = self.client.get_iopub_msg(timeout=timeout_s)
            except Empty:
                raise AssertionError(f"no answer within {timeout_s} s; so far: {result}") from None
            if reply["parent_header"].get("msg_id") != message:
                continue
            kind, content = reply["msg_type"], reply["content"]
            if kind == "stream":
                setattr(result, content["name"], getattr(result, content["name"]) + content["text"])
                on_stdout(result.stdout)
            elif kind in ("display_data", "execute_result"):
                places[content.get("transient", {}).get("display_id")] = len(result.shown)
                result.shown.append(content["data"])
                on_shown(content["data"])
            elif kind == "update_display_data":
                result.shown[places[content["transient"]["display_id"]]] = content["data"]
                on_shown(content["data"])
            elif kind == "error":
                result.error = content
            elif kind == "status" and content["execution_state"] == "idle":
                return result
