"""A TCP proxy on loopback that breaks connections: by the number of bytes that went to the client, so that a test does not
depend on time. With `tls` it also ends TLS, as a proxy in front of the service does.
"""

import asyncio
import ssl
import threading

UNCUT = None
_CHUNK = 16 << 10


class Silent(int):
    """In place of a cut: nothing more passes towards the client, and the connection stays open."""


class ChaosProxy:
    """with ChaosProxy(port, cuts=[900, 2000]) as proxy: connect to 127.0.0.1:proxy.port

    `cuts`: after so many bytes towards the client the 1st, 2nd ... connection is cut, UNCUT is never; the last entry holds
    for all that follow.
    """

    def __init__(self, target_port, cuts=(UNCUT,), tls=None):
        self._target_port, self._cuts, self._tls = target_port, list(cuts), tls
        self.connections = self.broken = 0  # changed by the proxy's thread alone
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()

    def _run(self, ready):
        asyncio.set_event_loop(self._loop)
        self._tasks = set()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls))
        self.port = self._server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        self._server.close()
        tasks = asyncio.all_tasks(self._loop)  # those of connections that came this moment too
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, client_reader, client_writer):
        self._tasks.add(asyncio.current_task())
        client_writer.transport.set_write_buffer_limits(0)  # drained = handed to the kernel
        cut = self._cuts[min(self.connections, len(self._cuts) - 1)]
        self.connections += 1
        writers = [client_writer]
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            writers.append(server_writer)
            ways = [asyncio.ensure_future(self._pump(client_reader, server_writer, UNCUT)),
                    asyncio.ensure_future(self._pump(server_reader, client_writer, cut))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the service is down, or cut_all
        finally:
            for writer in writers:
                writer.transport.abort()
            self._tasks.discard(asyncio.current_task())

    async def _pump(self, reader, writer, left):
        """Until the end of either side, or `left` bytes have passed."""
        silent, some = isinstance(left, Silent), bool(left)
        while data := await reader.read(_CHUNK):
            writer.write(data if left is UNCUT else data[:left])
            await writer.drain()
            if left is UNCUT:
                continue
            left = max(0, left - len(data))
            if left == 0:
                self.broken += 1
                if silent:
                    await asyncio.Event().wait()
                if some:  # for it to be read: a reset can overtake it
                    await asyncio.sleep(0.2)
                return

    def cut_all(self):
        """The connections of now."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def mutual_tls(certificate, key, client_ca):
    """For `tls`: PEM files of the server, and of who may connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    return context
