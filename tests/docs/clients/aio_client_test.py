"""The Python client for asyncio (docs/clients/python), through the cases that every client must pass."""

import asyncio
import unittest

import case_report
import client_stubs  # noqa: F401  makes bitshard_client importable
import bitshard_client as bitshard
from client_cases import Cases, Outcome
from python_client_test import client_options, failed


class AsyncCaller:
    @staticmethod
    def generate(target, request, timeout=None, cancel_after=None, on_message=None, **options):
        async def call():
            outcome = Outcome()
            async with bitshard.AsyncClient(target, client_options(**options)) as client:
                async with client.generate(request, timeout) as stream:
                    try:
                        async for message in stream:
                            outcome.messages.append(message)
                            if on_message:
                                on_message(len(outcome.messages))
                            if len(outcome.messages) == cancel_after:
                                outcome.state = stream.resume_state()
                                stream.cancel()
                    except bitshard.BitshardError as error:
                        failed(outcome, error)
                    outcome.resumes, outcome.request_id = stream.resumes, stream.request_id
            return outcome

        return asyncio.run(call())

    @staticmethod
    def complete(target, request, timeout=None, **options):
        async def call():
            outcome = Outcome()
            async with bitshard.AsyncClient(target, client_options(**options)) as client:
                try:
                    outcome.response = await client.complete(request, timeout)
                except bitshard.BitshardError as error:
                    failed(outcome, error)
            return outcome

        return asyncio.run(call())


class AioClientTest(Cases, unittest.TestCase):
    caller = AsyncCaller

    def test_a_cancelled_task_frees_its_request(self):
        request = bitshard.pb.GenerateRequest(text="x", max_tokens=1900, stop=bitshard.pb.Stopping(ignore_eos=True))

        async def read(client):
            async with client.generate(request) as stream:
                return [message async for message in stream]

        async def call():
            async with bitshard.AsyncClient(f"127.0.0.1:{self.port}") as client:
                task = asyncio.ensure_future(read(client))
                while self.service.load().running == 0 and not task.done():
                    await asyncio.sleep(0.005)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        asyncio.run(call())
        load = self.service.await_idle(timeout=10)
        self.assertEqual((load.running, load.blocks.used), (0, 0))

    def test_cancel_spares_what_is_complete_and_does_not_hide_a_cancelled_task(self):
        request = bitshard.pb.GenerateRequest(text="x", max_tokens=4, stop=bitshard.pb.Stopping(ignore_eos=True))
        endless = bitshard.pb.GenerateRequest(text="x", max_tokens=1900, stop=bitshard.pb.Stopping(ignore_eos=True))

        async def call():
            async with bitshard.AsyncClient(f"127.0.0.1:{self.port}") as client:
                stream = client.generate(request)
                async for message in stream:
                    if message.HasField("finished"):
                        stream.cancel()  # its status has not been read
                self.assertIsNotNone(stream.started)

                stream = client.generate(endless)
                await stream.__anext__()

                async def read():
                    return [message async for message in stream]

                task = asyncio.ensure_future(read())
                await asyncio.sleep(0.01)
                task.cancel()
                stream.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        asyncio.run(call())

    def test_a_closed_client_says_so(self):
        endless = bitshard.pb.GenerateRequest(text="x", max_tokens=1900, stop=bitshard.pb.Stopping(ignore_eos=True))

        async def read(stream):
            return [message async for message in stream]

        async def call():
            client = bitshard.AsyncClient(f"127.0.0.1:{self.port}")
            begun, idle, late = (client.generate(endless) for _ in range(3))
            await begun.__anext__()
            reader = asyncio.ensure_future(read(begun))
            whole = asyncio.ensure_future(client.complete(bitshard.pb.CompleteRequest(
                text="x", max_tokens=1900, stop=bitshard.pb.Stopping(ignore_eos=True))))
            await asyncio.sleep(0.02)
            await client.close()
            for ended in (reader, whole, idle.__anext__(), client.list_models(), read(late)):
                with self.assertRaises(bitshard.Cancelled) as raised:
                    await ended
                self.assertIn("closed", raised.exception.message)

        asyncio.run(call())
        self.service.await_idle(timeout=10)

    def test_many_answers_at_once(self):
        async def one(client, seed):
            request = bitshard.pb.GenerateRequest(text=f"Answer {seed}:", max_tokens=16,
                                                  sampling=bitshard.pb.Sampling(temperature=1, seed=seed))
            async with client.generate(request) as stream:
                return "".join([message.text async for message in stream])

        async def call():
            async with bitshard.AsyncClient(f"127.0.0.1:{self.port}") as client:
                return await asyncio.gather(*(one(client, seed) for seed in range(32)))

        first, second = asyncio.run(call()), asyncio.run(call())
        self.assertEqual(first, second)
        self.assertGreater(len(set(first)), 16)


if __name__ == "__main__":
    case_report.main()
