"""The protocol of client and relay: frames over one pair of byte streams, and the loader that starts the relay.

A frame is the length of its header (4 bytes, big-endian), the header (a JSON object in UTF-8) and, if the header has
{"size": n}, n bytes of payload. This module is part of the shipped agent; the client imports it, too.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_HEADER_BYTES = 4 << 20
MAX_PAYLOAD_BYTES = 1 << 20
MAGIC = "IGNITE-TF-AGENT 1"

# This code runs on the host before any file of ours is there. The user's shell, of any kind, passes it to `-c` in
# single quotes. So it has no newline, no "!", no single quote and no double backslash (which fish interprets). It
# avoids hashlib, which loads OpenSSL: that takes a fifth of the time that Python needs to start.
# The hash proves the agent's source. For other files the loader checks the owner: for the agent's compiled form, which
# Python may use without reading the source, and for the directories from which workers start. The agent's directory is
# not on the path, because a json.py in it would shadow the standard library's.
_LOADER_CODE = """\
import os,sys
import _frozen_importlib_external as z
v=sys.version_info[:2]
say=lambda w:os.write(1,("%c@MAGIC@ %s%c"%(10,w,10)).encode())
if v<(3,8):
 say("OLD %d.%d"%v)
 sys.exit(3)
k,n,e=sys.argv[1],int(sys.argv[2]),os.environ.get
w=os.uname()[1].partition(".")[0]
full=lambda x:os.path.abspath(os.path.expanduser(x))
r=(sys.argv[3:]or[e("IGNITE_TF_HOME")])[0]
if not r:
 r=full((e("XDG_STATE_HOME")or"~/.local/state")+"/ignite_tf_magic")
 if not any(os.path.isdir(r+"/"+x)for x in("agents","runs","embedded")):
  r+="/"+w
r=full(r)
try:
 o=open(r+"/host").read().strip()
except OSError:
 o=""
if o not in("",w):
 say("HOST "+o+" "+r)
 sys.exit(7)
u=os.umask(63)
d=r+"/agents"
p=d+"/"+k+".py"
def h2(c):
 for m in("_sha2","_sha256","hashlib"):
  try:
   return __import__(m).sha256(c).hexdigest()
  except ImportError:
   pass
b=z.cache_from_source(p)
for x in r,d,os.path.dirname(b),b,r+"/parcels",r+"/runs",r+"/venvs":
 try:
  s=os.stat(x)
 except OSError:
  continue
 if s.st_mode&18 or s.st_uid not in(0,os.getuid()):
  say("OPEN "+x)
  sys.exit(6)
try:
 with open(p,"rb") as f:
  h=h2(f.read(n+1))==k
except OSError:
 h=False
say("HAVE" if h else "NEED")
c=b""
while not h and len(c)<n:
 x=os.read(0,n-len(c))
 if not x:
  sys.exit(4)
 c+=x
if c:
 if not h2(c)==k:
  say("BAD")
  sys.exit(5)
 t=p+"."+str(os.getpid())
 try:
  os.makedirs(d,448,True)
  with open(r+"/host","w") as f:
   f.write(w)
  with open(t,"wb") as f:
   f.write(c)
   f.flush()
   os.fsync(f.fileno())
  os.replace(t,p)
  h=True
 except OSError:
  if os.path.exists(t):
   os.unlink(t)
g={"__name__":k}
exec(z.SourceFileLoader(k,p).get_code(k)if h else c,g)
g["serve"](r,k,u)
"""
LOADER = "exec(" + json.dumps(_LOADER_CODE.replace("@MAGIC@", MAGIC)) + ")"


def loader_arguments(
    digest: str, num_bytes: int, root: str | None = None, python: str = "python3"
) -> list[str]:
    """Return the command that starts a relay. Only its fifth argument, LOADER, needs quotes in a shell.

    The command prints a line with MAGIC and a status word. HAVE means that the host has the agent. After NEED the
    command reads the `num_bytes` of the agent. Frames then go both ways. After any other word the command ends: OLD and
    the version of the interpreter; HOST, another host and the directory that belongs to it; OPEN and a path that others
    own or may write to; BAD if the agent that was sent has another hash.
    """
    return [python, "-I", "-S", "-c", LOADER, digest, str(num_bytes), *([root] if root else [])]


class FrameError(ValueError):
    """A frame is malformed or exceeds its limit. After a decoding error, close the stream."""


def encode_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return one frame. Sets `size` in the header.

    Raises:
        FrameError: The header or the payload exceeds its limit.
    """
    if payload:
        header = {**header, "size": len(payload)}
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a frame of {len(text)} + {len(payload)} bytes is over its bound")
    return struct.pack(">I", len(text)) + text + payload


class FrameDecoder:
    """Decodes frames from bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Add bytes; return the frames that are now complete, as (header, payload).

        Raises:
            FrameError: A length exceeds its limit, or a header is not a JSON object.
        """
        self._buffer += data
        frames: list[tuple[dict[str, Any], bytes]] = []
        while True:
            frame = self._next()
            if frame is None:
                return frames
            frames.append(frame)

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        if self._header is None:
            self._header = self._take_header()
        if self._header is None:
            return None
        size = self._header.get("size", 0)
        if len(self._buffer) < size:
            return None
        payload = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        header, self._header = self._header, None
        return header, payload

    def _take_header(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack_from(">I", self._buffer)
        if length > MAX_HEADER_BYTES:
            raise FrameError(f"a header of {length} bytes: this is no frame")
        if len(self._buffer) < 4 + length:
            return None
        header = _parse(bytes(self._buffer[4 : 4 + length]))
        del self._buffer[: 4 + length]
        return header


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a header that is no JSON: {text[:60]!r}") from error
    size = header.get("size", 0) if isinstance(header, dict) else None
    if type(size) is not int or not 0 <= size <= MAX_PAYLOAD_BYTES:
        raise FrameError(f"a header that is no object with a sane size: {text[:60]!r}")
    return header  # type: ignore[no-any-return]
