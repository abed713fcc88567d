"""Many hosts in one process: asyncssh serves each at an address of 127.0.0.0/8 and runs commands on this machine.

Each host has its own home (IGNITE_TF_HOME); relays, shims and processes are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import asyncssh

from ignite_tf_magic.launch.ssh import SshOptions


class FakeHosts:
    """Starts the server process. `names` are the hosts' ssh names, `options` the SSH options to reach them."""

    def __init__(self, folder: Path, num_hosts: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.num_hosts = num_hosts
        self.names = [f"fake{i}" for i in range(num_hosts)]
        for name in ("host_key", "user_key"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(folder / name)
            (folder / name).chmod(0o600)  # `ssh` refuses keys that others can read
            key.write_public_key(folder / f"{name}.pub")
        self.options = SshOptions(config_file=str(folder / "ssh_config"))

    def home(self, name: str) -> Path:
        return self.folder / name

    def __enter__(self) -> FakeHosts:
        command = [sys.executable, __file__, str(self.folder), str(self.num_hosts)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the fake hosts did not start"
        port = json.loads(line)["port"]
        key = (self.folder / "host_key.pub").read_text()
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text("".join(f"[{_address(i)}]:{port} {key}" for i in range(self.num_hosts)))
        hosts = "".join(f"Host {name}\n  HostName {_address(i)}\n" for i, name in enumerate(self.names))
        common = f"  Port {port}\n  IdentityFile {self.folder}/user_key\n  IdentityAgent none\n"
        known = f"  UserKnownHostsFile {self.known_hosts}\n"
        (self.folder / "ssh_config").write_text(f"{hosts}Host fake*\n{common}{known}")
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(300)
        self.process.stdout.close()


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def _address(index: int) -> str:
    return f"127.3.{index // 200}.{index % 200 + 1}"


async def _serve(folder: Path, num_hosts: int) -> None:
    homes = {_address(i): folder / f"fake{i}" for i in range(num_hosts)}

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        address = process.get_extra_info("sockname")[0]
        local = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", process.command or "true"),
            env={**os.environ, "IGNITE_TF_HOME": str(homes[address])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        await process.redirect(stdin=local.stdin, stdout=local.stdout, stderr=local.stderr)
        with contextlib.suppress(OSError, asyncssh.Error):
            process.exit(await local.wait())

    options = asyncssh.SSHServerConnectionOptions(
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "user_key.pub"),
        process_factory=run,
        encoding=None,
    )
    port = 0
    for address in homes:
        listener = await asyncssh.listen(address, port, options=options, backlog=64)
        port = listener.get_port()
    print(json.dumps({"port": port}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # exits even if connections are open


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
