"""The expected placements: the placer's own dump in a local session.

    python oracle.py FOLDER DEVICES

places every FOLDER/*.pb on that many logical CPUs, strictly and softly, and writes
FOLDER/answers.json: ``{"NAME soft": {node: device}}``, or the error's message. It needs a
separate process, because TensorFlow reads the dump directory when it is loaded.
"""

import json
import os
import sys
from pathlib import Path

folder, devices = Path(sys.argv[1]), int(sys.argv[2])
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_VMODULE": "placer=3",
    "TF_DUMP_GRAPH_PREFIX": str(folder / "dumps"),
}

# After the variables above, which TensorFlow reads when it is loaded.
import tensorflow as tf  # noqa: E402
from google.protobuf import text_format  # noqa: E402

tf1 = tf.compat.v1


def placed(data: bytes, soft: bool) -> dict[str, str] | str:
    for old in (folder / "dumps").glob("*"):
        old.unlink()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf1.GraphDef.FromString(data), name="")
        probe = tf.no_op(name="oracle_probe")
    config = tf1.ConfigProto(allow_soft_placement=soft, device_count={"CPU": devices})
    with tf1.Session(graph=graph, config=config) as session:
        try:
            session.run(probe)
        except tf.errors.OpError as error:
            return str(error.message)
    (dump,) = (
        dump
        for dump in (folder / "dumps").glob("placer_output*")
        if "oracle_probe" in dump.read_text()
    )
    nodes = text_format.Parse(dump.read_text(), tf1.GraphDef()).node
    return {node.name: node.device for node in nodes}


answers = {
    f"{file.stem} {'soft' if soft else 'strict'}": placed(file.read_bytes(), soft)
    for file in sorted(folder.glob("*.pb"))
    for soft in (False, True)
}
(folder / "answers.json").write_text(json.dumps(answers))
