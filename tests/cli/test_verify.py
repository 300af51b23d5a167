"""The command on real programs: output and status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks import RULES


@pytest.fixture
def at_root(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fixtures.parent)


# The rules with something to judge in the towers of fixtures/programs/graph/mnist.py.
KEPT = [
    *("placeable", "no-fallback", "no-idle-device", "variables-on-host", "slots-with-variables"),
    *("gradients-colocated", "averaging-on-host", "variables-shared", "trainables-trained"),
    *("names-portable", "towers-alike", "losses-apart", "inputs-distinct", "randomness-apart"),
    *("every-tower-counts", "aggregated-before-clipped", "loss-of-all-towers", "one-update"),
    *("gradients-equal", "weights-equal", "towers-overlap"),
]


@pytest.mark.parametrize(
    ("gpus", "form"), [pytest.param(2, "text", marks=pytest.mark.smoke), (4, "json")]
)
@pytest.mark.usefixtures("at_root")
def test_the_sound_towers_keep_every_rule(run: Run, gpus: int, form: str) -> None:
    reference = ("--reference", "fixtures/programs/graph/mnist.py:build_single")
    batch = ("--batch", "fixtures/programs/graph/mnist.py:batch")
    target = ("fixtures/programs/graph/mnist.py:build_towers", "--gpus", gpus)
    ran = run("verify", *target, *reference, *batch, "--format", form)

    assert ran.status == 0
    if form == "json":
        (program,) = json.loads(ran.out)["programs"]
        states = {rule["rule"]: rule["state"] for rule in program["rules"]}
        assert "broken" not in states.values()
        assert {rule for rule in KEPT if states[rule] != "kept"} == set()
        assert (program["machine"], program["placer"]) == (f"gpu*{gpus}", "phantom")
        assert program["devices"] == "simulated"
    else:
        assert (
            f"10 trainable and 32 global variables with 1 tower and with {gpus} towers" in ran.out
        )
        assert re.search(r"\n1 program, rules: \d+ kept, 0 broken, \d+ not checked\.\n", ran.out)


SMALL = """
import tensorflow as tf

def build():
    with tf.device("/gpu:0"):
        tf.sqrt(tf.compat.v1.placeholder(tf.float32))
"""


def test_the_programs_of_the_configuration_are_verified(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(SMALL)
    Path("pyproject.toml").write_text(
        "[tool.placement_checks]\nprograms = [\n"
        "  { target = 'small.py:build', gpus = 1 },\n"
        "  { target = 'small.py:build', policy.no-idle-device.allow = ['/gpu:1'] },\n]\n"
    )

    ran = run("verify")

    assert ran.status == 0
    assert re.search(r"^2 programs, rules: \d+ kept, 0 broken", ran.out, re.MULTILINE)


@pytest.mark.parametrize("target", ["small.py:build", "./small.py:build"])
def test_a_named_program_has_the_settings_of_its_entry(
    target: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(SMALL)
    Path("pyproject.toml").write_text(
        "[tool.placement_checks]\nprograms = [{ target = 'small.py:build', gpus = 1 }]\n"
    )

    ran = run("verify", target)

    assert ran.status == 0
    assert "gpu*1" in ran.out
    assert "pyproject.toml" not in ran.out  # it is listed there


@pytest.mark.smoke
def test_one_variable_on_the_gpu_is_named_with_its_line(
    run: Run, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (fixtures / "programs/graph/mnist.py").read_text()
    changed = source.replace(
        'biases = variable("biases", [width]',
        'with tf.device(f"/gpu:0"):\n                biases = variable("biases", [width]',
    ).replace("    def variable(name", "    def variable(name", 1)
    # The helper's own scope would win: the copy makes the biases of the dense layers by hand.
    changed = changed.replace(
        '                biases = variable("biases", [width], tf1.zeros_initializer())',
        '                biases = tf1.get_variable("biases", [width])  # here',
    )
    assert changed != source
    (tmp_path / "copy.py").write_text(changed)
    monkeypatch.chdir(tmp_path)
    line = 1 + changed[: changed.index("# here")].count("\n")

    ran = run("verify", "copy.py:build_towers", "--format", "json")

    assert ran.status == 1
    broken = [r for r in json.loads(ran.out)["programs"][0]["rules"] if r["state"] == "broken"]
    assert [rule["rule"] for rule in broken] == ["variables-on-host"]
    biases = ["fc1/biases", "fc2/biases", "logits/biases"]
    slots = [f"{name}/{slot}" for name in biases for slot in ("Adam", "Adam_1")]
    findings = broken[0]["findings"]
    assert sorted(finding["object"] for finding in findings) == sorted([*biases, *slots])
    assert all(
        finding["message"].startswith(f"variable {finding['object']} sits on /device:GPU:0")
        for finding in findings
    )
    (found,) = (finding for finding in findings if finding["object"] == "fc1/biases")
    assert found["where"] == f"copy.py:{line - 1}"  # the scope of the device
    assert found["frames"][-1] == f"copy.py:{line}"


@pytest.mark.usefixtures("at_root")
def test_soft_and_strict_placement_with_the_placers_reason(run: Run) -> None:
    target = "fixtures/defects/graph/no_gpu_kernel.py:build"
    states = {}
    for flag in ("--soft", "--strict"):
        (program,) = json.loads(run("verify", target, flag, "--format", "json").out)["programs"]
        rules = program["rules"]
        states[flag] = {rule["rule"]: rule for rule in rules}

    assert states["--soft"]["placeable"]["state"] == "kept"
    assert states["--strict"]["placeable"]["state"] == "broken"
    assert states["--soft"]["no-fallback"]["state"] == "broken"
    assert [f["message"] for f in states["--soft"]["no-fallback"]["findings"]] == [
        "buckets (StringToHashBucketFast) requests /device:GPU:0 and ends on /device:CPU:0: "
        "StringToHashBucketFast has no GPU kernel",
        "step (VariableV2) requests /device:GPU:0 and ends on /device:CPU:0, with 2 ops "
        "that must be on the same device: the GPU kernel of VariableV2 does not take int32",
    ]
    assert states["--strict"]["placeable"]["findings"][0]["message"] == (
        "buckets cannot be placed: Could not satisfy explicit device specification "
        "'/device:GPU:0' because no supported kernel for GPU devices is available."
    )


@pytest.mark.usefixtures("at_root")
def test_command_line_settings_have_precedence(run: Run) -> None:
    target = "fixtures/defects/graph/sum_for_mean.py:build_single"

    declared = run("verify", target, "--gpus", 1, "--rule", "variables-on-host")
    overruled = run(
        "verify", target, "--gpus", 1, "--rule", "variables-on-host",
        "--set", "variables-on-host.device=/cpu:0",
    )  # fmt: skip

    assert (declared.status, overruled.status) == (0, 1)


@pytest.mark.usefixtures("at_root")
def test_several_targets_have_the_worst_status(run: Run) -> None:
    ran = run(
        "verify", "fixtures/sound/graph/styles.py:name_scopes", "nowhere.py:build",
        "fixtures/defects/graph/variable_on_gpu.py:build_towers", "--format", "json",
    )  # fmt: skip

    document = json.loads(ran.out)
    assert ran.status == 2
    assert len(document["programs"]) == 2
    assert document["error"]["object"] == "nowhere.py"
    assert ran.err.count("\n") == 1


def test_a_requested_rule_that_is_not_checked_counts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(SMALL)
    target = ("verify", "small.py:build", "--gpus", 1)
    (program,) = json.loads(run(*target, "--format", "json").out)["programs"]
    unchecked = [rule["rule"] for rule in program["rules"] if rule["state"] == "not-checked"]
    first, *others = unchecked
    without = [option for rule in others for option in ("--without", rule)]

    assert run(*target).status == 0
    assert run(*target, "--rule", "session-memory").status == 2
    assert run(*target, "--require-all").status == 1
    assert run(*target, "--require-all", *without).status == 1
    assert run(*target, "--require-all", *without, "--without", first).status == 0


def test_only_the_report_is_on_standard_output(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loud.py").write_text(
        "import os\nimport tensorflow as tf\n\ndef build():\n    print('from Python')\n"
        "    os.write(1, b'from C\\n')\n    with tf.device('/gpu:0'):\n"
        "        tf.compat.v1.placeholder(tf.float32) + 1\n"
    )

    ran = run(
        "verify", "loud.py:build", "--gpus", 1, "--format", "json", "--output", "report.json"
    )

    assert ran.out == ""
    assert "from Python\n" in ran.err
    assert "from C\n" in ran.err
    assert json.loads(Path("report.json").read_text())["schema"] == 2


@pytest.mark.smoke
def test_place_prints_every_op_like_tensorflow(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(
        "import tensorflow as tf\n\ndef build():\n    with tf.device('/gpu:1'):\n"
        "        x = tf.sqrt(tf.compat.v1.placeholder(tf.float32, name='p'), name='x')\n"
        "    with tf.device('/cpu:0'):\n        tf.identity(x, name='y')\n"
    )

    assert run("place", "small.py:build").out == (
        "p: (Placeholder): /job:localhost/replica:0/task:0/device:GPU:1\n"
        "x: (Sqrt): /job:localhost/replica:0/task:0/device:GPU:1\n"
        "y: (Identity): /job:localhost/replica:0/task:0/device:CPU:0\n"
    )
    refused = run("place", "small.py:build", "--gpus", "1")
    assert refused.status == 2
    assert re.fullmatch(  # it names one of the two, as it happens
        r"placement-checks: small.py:build cannot be placed on gpu\*1: "
        r"[px]: .* was explicitly assigned to /device:GPU:1 but available devices "
        r"are \[ /device:CPU:0, /device:GPU:0 \].* \(built at small.py:5\); "
        r"the machine \(gpu\*1\) has no /device:GPU:1: correct the index of the device, or "
        r"add devices \(--gpus, --machine\)\n",
        refused.err,
    )
    assert (
        "x: (Sqrt): /job:localhost/replica:0/task:0/device:GPU:0\n"
        in run("place", "small.py:build", "--gpus", "1", "--soft").out
    )


@pytest.mark.smoke
def test_a_cluster_program_gets_the_smallest_cluster(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.py").write_text(
        "import tensorflow as tf\ntf1 = tf.compat.v1\n\ndef build():\n"
        "    with tf.device('/job:ps/task:1/cpu:0'):\n"
        "        v = tf1.get_variable('v', [2], use_resource=False)\n"
        "    for i in range(2):\n"
        "        with tf.device(f'/job:worker/task:2/gpu:{i}'):\n            tf.sqrt(v)\n"
    )

    ran = run("verify", "cluster.py:build", "--format", "json", "--without", "no-idle-device")

    (program,) = json.loads(ran.out)["programs"]
    assert program["machine"] == "ps*2: cpu*1; worker*3: gpu*2"
    kept = {rule["rule"] for rule in program["rules"] if rule["state"] == "kept"}
    assert {"placeable", "no-fallback", "variables-on-host", "shards-balanced"} <= kept


@pytest.mark.usefixtures("at_root")
def test_every_target_that_failed_is_in_the_json(run: Run) -> None:
    ran = run("verify", "nowhere.py:a", "elsewhere.py:b", "--format", "json")

    document = json.loads(ran.out)
    assert [error["object"] for error in document["errors"]] == ["nowhere.py", "elsewhere.py"]
    assert document["error"] == document["errors"][0]


def test_reads_of_variables_give_parameter_servers_no_gpu(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads of resource variables get the job of the variable and the GPU of the worker."""
    monkeypatch.chdir(tmp_path)
    Path("cluster.py").write_text(
        "import tensorflow as tf\ntf1 = tf.compat.v1\n\ndef build():\n"
        "    setter = tf1.train.replica_device_setter(\n"
        "        ps_tasks=1, worker_device='/job:worker/task:0/gpu:0')\n"
        "    with tf1.device(setter):\n"
        "        tf.sqrt(tf1.get_variable('v', [2], use_resource=True))\n"
    )

    ran = run("verify", "cluster.py:build", "--gpus", 1, "--format", "json")

    (program,) = json.loads(ran.out)["programs"]
    states = {rule["rule"]: rule["state"] for rule in program["rules"]}
    assert program["machine"] == "ps*1: cpu*1; worker*1: gpu*1"
    assert (states["placeable"], states["no-fallback"]) == ("broken", "kept")
    assert states["variables-on-host"] == "kept"


def test_rules_and_explain(run: Run) -> None:
    listed = run("rules").out.splitlines()
    explained = run("explain", "variables-on-host").out

    assert [line.split()[0] for line in listed] == list(RULES)
    assert explained.startswith("Every variable sits on the declared device")
    assert "variables-on-host.device = '/cpu:0'" in explained
    assert run("explain", "variables-on-hosts").err == (
        "placement-checks: rule 'variables-on-hosts' is not a known rule; "
        "did you mean 'variables-on-host'?\n"
    )


@pytest.mark.usefixtures("at_root")
def test_transfers_of_parameters_and_gradients(run: Run) -> None:
    """178,762 parameters of 4 bytes go to every tower, and their gradients back."""
    size = 4 * 178_762

    placed = run(
        "place", "fixtures/programs/graph/mnist.py:build_towers", "--transfers", "--rows", 512
    ).out.splitlines()
    document = json.loads(
        run(
            "verify", "fixtures/programs/graph/mnist.py:build_towers", "--format", "json",
            "--rule", "transfer-budget", "--set", "transfer-budget.rows=512",
        ).out
    )  # fmt: skip

    assert f"/device:GPU:0 -> /device:CPU:0: {size:,} bytes in 10 copies" in placed
    assert f"/device:GPU:1 -> /device:CPU:0: {size:,} bytes in 10 copies" in placed
    table = [" ".join(line.split()) for line in placed]
    assert "fc2 263.2 kB in 4 263.2 kB in 4 fixtures/programs/graph/mnist.py:45" in table
    assert table[-1] == "all 8 B in 2 1.4 MB in 20 1.4 MB in 20"
    (rule,) = document["programs"][0]["rules"]
    back = {"from": "/device:GPU:1", "to": "/device:CPU:0", "copies": 10, "bytes": size}
    assert {**back, "unknown": 0} in rule["figures"]
    assert f"/device:GPU:1 -> /device:CPU:0: {size:,} bytes" in rule["note"]


@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize(("budget", "status"), [(2_860_200, 0), (2_860_199, 1)])
def test_the_transfer_budget_is_exact(run: Run, budget: int, status: int) -> None:
    ran = run(
        "verify", "fixtures/programs/graph/mnist.py:build_towers", "--rule", "transfer-budget",
        "--set", "transfer-budget.rows=512", "--set", f"transfer-budget.bytes={budget}",
    )  # fmt: skip

    assert ran.status == status
    if status:
        assert (
            "one step sends 2,860,200 bytes between devices, over the budget of 2,860,199 bytes"
            in " ".join(ran.out.split())
        )


def test_rows_set_the_size_of_transfers(run: Run) -> None:
    ran = run("place", "train.py:build", "--rows", 8)

    assert ran.status == 2
    assert ran.err == (
        "placement-checks: --rows requires --transfers; add --transfers, or omit --rows\n"
    )
    assert run("place", "train.py:build", "--format", "json").status == 2


CLUSTER = """
import tensorflow as tf

tf1 = tf.compat.v1


def build():
    worker = "/job:worker/task:1/gpu:0"
    setter = tf1.train.replica_device_setter(1, "/job:ps/cpu:0", worker)
    with tf1.device(setter):
        w = tf1.get_variable("w", [4, 1])
        loss = tf.reduce_mean((tf1.placeholder(tf.float32, [8, 4]) @ w) ** 2)
        return tf1.train.GradientDescentOptimizer(0.1).minimize(loss)


def compared(num_gpus):
    return build()
"""


@pytest.mark.parametrize(
    ("function", "options", "gpus"),
    [("build", [], 1), ("build", ["--gpus", 2], 2), ("compared", [], 2)],
)
def test_each_task_gets_the_gpus_that_it_names(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    options: list[object],
    gpus: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CLUSTER)

    ran = run("verify", f"train.py:{function}", *options, "--rule", "no-idle-device")

    assert f"on ps*1: cpu*1; worker*2: gpu*{gpus} (" in ran.out
    assert ran.status == (0 if gpus == 1 else 1)
