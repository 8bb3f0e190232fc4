"""Asks one question and prints the answer as it is written: python example.py [--target=localhost:50051] [QUESTION]"""

import argparse
import sys

import bitshard_client as bitshard
from bitshard_client import pb


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="localhost:50051", help="host:port of the service")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for the whole answer")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("question", nargs="?", default="Name three primary colours.")
    args = parser.parse_args()

    request = pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=args.question)]), max_tokens=args.max_tokens)
    with bitshard.Client(args.target) as client:
        try:
            with client.generate(request, timeout=args.timeout) as answer:
                for message in answer:
                    print(message.text, end="", flush=True)
                    if message.HasField("finished"):
                        usage = message.finished.usage
                        print(f"\n[{pb.FinishReason.Name(message.finished.reason)}, {usage.prompt_tokens} + "
                              f"{usage.completion_tokens} tokens, request {answer.request_id}]", file=sys.stderr)
        except bitshard.InvalidRequest as error:
            for violation in error.fields:
                print(f"{violation.field}: {violation.description}", file=sys.stderr)
            return 2
        except bitshard.Overloaded as error:
            print(f"too busy; come back in {error.retry_after} s", file=sys.stderr)
            return 1
        except bitshard.BitshardError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
