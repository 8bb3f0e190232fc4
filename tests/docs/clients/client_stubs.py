"""Makes `import bitshard_client` work in a test, on the stubs that the service's own test client has generated: one process
cannot hold the messages of one proto file twice. readme_test.py generates them as users do.
"""

import sys

import live_service

sys.modules["bitshard_client.inference_pb2"] = live_service.pb
sys.modules["bitshard_client.inference_pb2_grpc"] = live_service.pb_grpc
sys.path.insert(0, str(live_service.ROOT / "docs/clients/python"))
