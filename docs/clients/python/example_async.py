"""Answers the lines of standard input, several at a time, in their order: python example_async.py < prompts.txt"""

import argparse
import asyncio
import sys

import bitshard_client as bitshard
from bitshard_client import pb


async def answer(client: bitshard.AsyncClient, places: asyncio.Semaphore, line: str, max_tokens: int) -> str:
    request = pb.GenerateRequest(text=line, max_tokens=max_tokens, service_class=pb.SERVICE_CLASS_BATCH)
    async with places:
        try:
            async with client.generate(request) as stream:
                return "".join([message.text async for message in stream])
        except bitshard.BitshardError as error:
            return f"[{error}]"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="localhost:50051", help="host:port of the service")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=32)
    args = parser.parse_args()

    lines = [line.strip() for line in sys.stdin if line.strip()]
    places = asyncio.Semaphore(args.at_once)
    async with bitshard.AsyncClient(args.target) as client:
        answers = await asyncio.gather(*(answer(client, places, line, args.max_tokens) for line in lines))
    for line, text in zip(lines, answers):
        print(f"{line} -> {text!r}")


if __name__ == "__main__":
    asyncio.run(main())
