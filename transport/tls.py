"""TLS under the same wire as plain sockets: non-blocking, "not now" is BlockingIOError in both.

The handshake happens inside the first recv, so the loop knows nothing of it.
"""
from transport.loop import Connection


def make_tls_context(cert_path, key_path):
    """A server context for a PEM certificate and key. Raises ValueError with one clear line."""
    try:
        import ssl
    except ImportError:
        raise ValueError("--tls-cert: this Python was built without ssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_path, key_path or None, _no_password)
    except (OSError, ValueError) as exc:
        raise ValueError("--tls-cert %s%s: %s" % (cert_path, " --tls-key " + key_path if key_path else "", exc))
    return context


def _no_password():
    raise ValueError("the key is encrypted; mockturtle asks for no password")


class TlsConnection(Connection):
    """A Connection whose bytes are encrypted. context: from make_tls_context()."""

    __slots__ = ("_want", "_end")
    can_refuse = False

    def __init__(self, sock, address, parser, context):
        import ssl
        self._want = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._end = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
        try:
            sock.getpeername()          # wrap_socket would leave a socket open for one that was reset
            wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:
            sock.close()                # the client was gone before its handshake
            raise
        Connection.__init__(self, wrapped, address, parser)
        self.send = self._send_encrypted
        self.recv = self._recv_decrypted

    def _send_encrypted(self, data):
        try:
            # a record at a time: SSL counts nothing as sent until all that it was given is
            return self.sock.send(memoryview(data)[:16384])
        except self._want:
            raise BlockingIOError("the TLS layer waits")

    def _recv_decrypted(self, size):
        try:
            return self.sock.recv(size)
        except self._want:
            raise BlockingIOError("the TLS layer waits")
        except self._end:
            return b""

    def peek(self):
        """TLS bytes cannot be looked at without being taken: what came is kept for the next read."""
        data = self._recv_decrypted(65536)
        self.unread += data
        return data

    def finish_sending(self):
        """Say that no more comes, in TLS's own words first."""
        try:
            self.sock.unwrap()
        except (OSError, ValueError):
            pass                    # it waits for the client's word, which nobody needs; or is gone
        Connection.finish_sending(self)
