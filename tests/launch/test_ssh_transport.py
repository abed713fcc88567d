from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ignite_tf_magic.errors import ConfigError, HostKeyRejected, HostUnreachable, SshAuthFailed
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.loop import loop_thread
from ignite_tf_magic.launch.ssh import SshOptions, SshPipe, SshTransport, command_line
from tests.launch.sshd import Sshd
from tests.waiting import until

TIMEOUTS = LinkTimeouts(connect_s=10)


@pytest.fixture(autouse=True)
def nobody_at_home(tmp_path, monkeypatch):
    """Hide the user's keys, agent and known hosts from the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


async def _run(
    transport: SshTransport, argv: list[str], timeouts: LinkTimeouts
) -> tuple[bytes, int | None, str]:
    pipe = await transport.open(argv, timeouts)
    try:
        output = b""
        while data := await pipe.read(65536):
            output += data
        return output, *await pipe.ending()
    finally:
        await pipe.close()


def run(options: SshOptions, *argv: str, name: str = "box", timeouts: LinkTimeouts = TIMEOUTS):
    return loop_thread().run(_run(SshTransport(name, options), list(argv), timeouts))


def add_to_config(server: Sshd, text: str) -> None:
    server.ssh_config.write_text(text + server.ssh_config.read_text())


def test_output_errors_and_the_exit_code_come_back(box):
    assert run(box.options, "sh", "-c", r"printf 'a\377b'; echo oh >&2; exit 7") == (b"a\xffb", 7, "oh")


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "tcsh", "csh", "fish", "zsh"])
def test_a_command_survives_any_login_shell(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    arguments = ["", "a b", "$HOME", '"', "; exit 3", "ü", "`ls`", "*"]
    line = command_line(["printf", "%s|", *arguments])
    done = subprocess.run([shell, "-c", line], capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout.decode() == "".join(f"{argument}|" for argument in arguments)


def test_the_home_directory_is_that_of_the_host(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "tool").symlink_to(shutil.which("echo"))
    line = command_line(["~/a b/tool", "~/x"])
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, env={"HOME": str(tmp_path)})
    assert done.stdout == b"~/x\n"


async def _open_three(transport: SshTransport) -> list[SshPipe]:
    return list(await asyncio.gather(*(transport.open(["cat"], TIMEOUTS) for _ in range(3))))


async def _close(pipes: list[SshPipe]) -> None:
    for pipe in pipes:
        await pipe.close()
        await pipe.close()


def num_logins(server: Sshd) -> int:
    return server.log.count("Accepted publickey")


def test_one_connection_serves_all_who_name_the_host_alike_and_is_closed_by_the_last(box):
    pipes = loop_thread().run(_open_three(SshTransport("box", box.options)))
    more = loop_thread().run(_open_three(SshTransport("box", SshOptions(**_fields(box.options)))))
    assert num_logins(box) == 1
    loop_thread().run(_close(pipes))
    assert box.sessions()
    loop_thread().run(_close(more))
    run(box.options, "true")
    assert num_logins(box) == 2


def _fields(options: SshOptions) -> dict:
    return {name: getattr(options, name) for name in SshOptions.__slots__}


def test_an_unknown_host_is_not_trusted(box):
    box.known_hosts.unlink()
    with pytest.raises(HostKeyRejected, match="not known.*SHA256:.*Log in once") as caught:
        run(box.options, "true")
    advice = re.search(r"ssh-keyscan .*$", str(caught.value))
    assert advice
    subprocess.run(["sh", "-c", advice.group()], check=True, capture_output=True)
    assert run(box.options, "true")[1] == 0


def test_a_changed_host_key_is_not_trusted(box):
    box.know(box.make_key("other_key"))
    with pytest.raises(HostKeyRejected, match=re.escape(f"{box.known_hosts} line 2")) as caught:
        run(box.options, "true")
    assert num_logins(box) == 0
    advice = re.search(r"ssh-keygen -R [^;]*", str(caught.value))
    assert advice
    subprocess.run(["sh", "-c", advice.group()], check=True, capture_output=True)
    with pytest.raises(HostKeyRejected, match="not known"):
        run(box.options, "true")


def test_a_known_key_of_another_kind_is_a_changed_key(box):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", box.folder / "ecdsa"], check=True)
    box.know(box.folder / "ecdsa")
    with pytest.raises(HostKeyRejected, match="line 2"):
        run(box.options, "true")


def test_a_configuration_without_known_hosts_trusts_nobody(box):
    text = box.ssh_config.read_text().replace(
        f"UserKnownHostsFile {box.known_hosts}", "UserKnownHostsFile none\n  GlobalKnownHostsFile none"
    )
    box.ssh_config.write_text(text + "  StrictHostKeyChecking no\n")
    with pytest.raises(HostKeyRejected, match="not known.*names no file of known hosts"):
        run(box.options, "true")


def test_a_revoked_key_is_named(box):
    known = box.known_hosts.read_text()
    box.known_hosts.write_text(f"{known}@revoked * {' '.join(known.split()[-2:])}\n")
    with pytest.raises(HostKeyRejected, match="known_hosts line 3 revokes its key"):
        run(box.options, "true")


def test_a_broken_configuration(box):
    add_to_config(box, "Port nonsense\n")
    with pytest.raises(ConfigError, match=re.escape(str(box.ssh_config))):
        run(box.options, "true")


def test_no_key_is_accepted(box):
    box.authorized_keys.write_text("")
    with pytest.raises(SshAuthFailed, match=f"{getpass.getuser()}.*ssh-copy-id .*box"):
        run(box.options, "true")


def test_a_key_file_of_the_configuration_that_is_missing_is_no_error(box):
    add_to_config(box, "IdentityFile /no/such/key\n")
    assert run(box.options, "true")[1] == 0


def test_the_key_file_that_cannot_be_used_is_named(box, tmp_path):
    (tmp_path / "broken").write_text("no key")
    (tmp_path / "broken").chmod(0o600)
    shutil.copy(box.user_key, tmp_path / "open")
    (tmp_path / "open").chmod(0o644)
    text = box.ssh_config.read_text()
    for name, said in (("broken", "broken cannot be used"), ("open", "other users can read it; chmod 600")):
        box.ssh_config.write_text(text.replace(str(box.user_key), str(tmp_path / name)))
        with pytest.raises(SshAuthFailed, match=said):
            run(box.options, "true")


def test_a_key_with_a_passphrase_needs_an_agent(box, tmp_path, monkeypatch):
    key = box.make_key("locked_key", passphrase="secret words")
    shutil.copy(key.with_suffix(".pub"), box.authorized_keys)
    box.ssh_config.write_text(box.ssh_config.read_text().replace(str(box.user_key), str(key)))
    with pytest.raises(SshAuthFailed, match=f"passphrase.*ssh-add {key}"):
        run(box.options, "true")
    text = (
        box.ssh_config.read_text().replace("  IdentityAgent none\n", "").replace("  IdentitiesOnly yes\n", "")
    )
    box.ssh_config.write_text(text)
    with agent_holding(key, tmp_path, "secret words") as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        assert run(box.options, "true")[1] == 0


_NO_AGENT = 2  # exit code of ssh-add


@contextlib.contextmanager
def agent_holding(key: Path, folder: Path, passphrase: str):
    address = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.DEVNULL)
    try:
        asker = folder / "ask"
        asker.write_text(f"#!/bin/sh\necho {shlex.quote(passphrase)}\n")
        asker.chmod(0o700)
        env = {**os.environ, "SSH_AUTH_SOCK": str(address), "SSH_ASKPASS": str(asker)}
        env |= {"SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "none"}
        until(lambda: subprocess.run(["ssh-add", "-l"], env=env, capture_output=True).returncode != _NO_AGENT)
        subprocess.run(["ssh-add", key], env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        yield address
    finally:
        process.kill()
        process.wait()


def test_certificates_of_users_and_hosts(server):
    authority = server.make_key("authority")
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n"]
    subprocess.run([*sign, f"{getpass.getuser()},box", server.user_key], check=True, capture_output=True)
    subprocess.run([*sign, server.address, "-h", server.host_key], check=True, capture_output=True)
    public = " ".join(authority.with_suffix(".pub").read_text().split()[:2])
    server.known_hosts.write_text(f"@cert-authority [{server.address}]:{server.port} {public}\n")
    server.authorized_keys.write_text(f"cert-authority {public}\n")
    extra = f"HostCertificate {server.host_key}-cert.pub\n"
    server.sshd_config.write_text(server.sshd_config.read_text() + extra)
    with server:
        assert run(server.options, "true")[1] == 0


def test_a_name_that_does_not_resolve():
    with pytest.raises(HostUnreachable, match="does not resolve.*ssh .*no-such-host.invalid"):
        run(SshOptions(config_file="none"), "true", name="no-such-host.invalid")


def test_nothing_listens_there(server):
    with pytest.raises(HostUnreachable, match=f"127.0.1.1 port {server.port} refused.*sshd"):
        run(server.options, "true")


def test_a_host_that_accepts_and_says_nothing(server):
    with socket.create_server((server.address, server.port)):
        with pytest.raises(HostUnreachable, match="no answer.*within 0.3 s"):
            run(server.options, "true", timeouts=LinkTimeouts(connect_s=0.3))


def test_through_a_jump_host(box, tmp_path, monkeypatch):
    with Sshd(tmp_path / "gate") as gate:
        text = gate.ssh_config.read_text().replace("Host box", "Host gate")
        box.ssh_config.write_text(box.ssh_config.read_text() + "  ProxyJump gate\n" + text)
        pipes = loop_thread().run(_open_three(SshTransport("box", box.options)))
        assert (num_logins(gate), num_logins(box)) == (1, 1)
        loop_thread().run(_close(pipes))
        assert run(box.options, "echo", "there")[0] == b"there\n"


def test_a_jump_host_given_by_hand(box, tmp_path):
    with Sshd(tmp_path / "gate") as gate:
        text = gate.ssh_config.read_text().replace("Host box", "Host gate")
        box.ssh_config.write_text(box.ssh_config.read_text() + text)
        assert run(replace(box.options, via=f"{getpass.getuser()}@gate:{gate.port}"), "true")[1] == 0
        assert num_logins(gate) == 1


def test_a_jump_host_that_fails_is_named(box, tmp_path):
    gate = Sshd(tmp_path / "gate")
    text = gate.ssh_config.read_text().replace("Host box", "Host gate")
    box.ssh_config.write_text(box.ssh_config.read_text() + "  ProxyJump gate\n" + text)
    with pytest.raises(HostUnreachable, match="'box'.*'gate'.*refused"):
        run(box.options, "true")
    with gate:
        gate.known_hosts.unlink()
        with pytest.raises(HostKeyRejected, match="'box'.*'gate'.*not known"):
            run(box.options, "true")


def test_a_target_that_the_jump_host_cannot_reach(server, tmp_path):
    with Sshd(tmp_path / "gate") as gate:
        text = gate.ssh_config.read_text().replace("Host box", "Host gate")
        server.ssh_config.write_text(server.ssh_config.read_text() + "  ProxyJump gate\n" + text)
        with pytest.raises(HostUnreachable, match=f"jump host cannot reach 127.0.1.1 port {server.port}"):
            run(server.options, "true")


def test_jump_hosts_in_a_circle(server):
    text = server.ssh_config.read_text()
    gate = text.replace("Host box", "Host gate")
    server.ssh_config.write_text(f"{text}  ProxyJump gate\n{gate}  ProxyJump box\n")
    with pytest.raises(HostUnreachable, match="circle: box -> gate -> box"):
        run(server.options, "true")


def test_a_server_that_drops_bursts_of_logins_is_asked_again(server):
    """MaxStartups makes sshd drop connections when too many have not logged in yet."""
    server.sshd_config.write_text(server.sshd_config.read_text() + "MaxStartups 2:100:2\n")
    aliases = "".join(f"Host alias{i}\n  HostName {server.address}\n" for i in range(12))
    server.ssh_config.write_text(aliases + server.ssh_config.read_text().replace("Host box", "Host alias*"))

    async def log_in_all() -> list[int | None]:
        transports = [SshTransport(f"alias{i}", server.options) for i in range(12)]
        return [
            code for _, code, _ in await asyncio.gather(*(_run(t, ["true"], TIMEOUTS) for t in transports))
        ]

    with server:
        assert loop_thread().run(log_in_all()) == [0] * 12
        assert "MaxStartups" in server.log


def test_a_connection_that_breaks_is_told_and_the_next_one_works(box):
    pipes = loop_thread().run(_open_three(SshTransport("box", box.options)))
    box.kill_sessions()
    with pytest.raises(HostUnreachable, match="box"):
        loop_thread().run(pipes[0].read(10))
    assert run(box.options, "true")[1] == 0
    loop_thread().run(_close(pipes))
    assert run(box.options, "true")[1] == 0


@pytest.mark.parametrize("what", ["echo backups only", "true"])
def test_a_forced_command_is_named_as_a_cause(server, what):
    with server.sshd_config.open("a") as file:
        file.write(f"\nForceCommand {what}\n")
    transport = SshTransport("box", server.options)
    with server, Host("box", transport, timeouts=TIMEOUTS) as host, pytest.raises(HostUnreachable) as caught:
        host.hello()
    told = str(caught.value)
    assert "python3 ended before its first output: exit code 0" in told
    assert "ForceCommand of sshd_config" in told
    assert "start-up file of the login shell" in told
