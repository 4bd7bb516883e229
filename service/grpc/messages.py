"""Messages of the Open Inference Protocol, as classes of protobuf; ``oip.proto`` describes them.

They are built from the compiled description, which unlike generated code works with every version of protobuf, and are
in a pool of their own, so that a client with messages of the same names may be imported in the same process.
``messages.pyi`` has their types.
"""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClassesForFiles

(_DESCRIPTION,) = FileDescriptorSet.FromString(Path(__file__).with_name("messages.binpb").read_bytes()).file
_POOL = DescriptorPool()
_POOL.Add(_DESCRIPTION)
DESCRIPTOR = _POOL.FindFileByName(_DESCRIPTION.name)
for _name, _class in GetMessageClassesForFiles([_DESCRIPTION.name], _POOL).items():
    if _name.count(".") == 1:  # others are attributes of the message in which they are declared
        globals()[_name.removeprefix("inference.")] = _class
