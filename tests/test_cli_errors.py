"""What the command refuses, word for word, and that it leaves nothing behind."""

import pytest
from cli_runs import enter, misused, refused, tbscope

from tests.warm import run_warm


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    return enter(tmp_path, monkeypatch)


def test_a_target_of_another_form():
    assert misused("show", "nets.py:") == (
        "Error: Invalid value for 'TARGET': 'nets.py:' has not the form "
        "package.module:make_model or path/to/file.py:make_model, and is no file with a graph"
    )


def test_a_path_at_which_there_is_no_file(folder):
    assert refused("show", "nofile.json") == (
        "Error: 'nofile.json' contains no graph\n"
        "  why: there is no such file\n  fix: give the path of a file that is there, or "
        "the model itself\n"
    )
    (folder / "sub").mkdir()
    (folder / "sub" / "graph.json").touch()
    assert refused("show", "sub/grap.json").endswith("fix: did you mean 'sub/graph.json'?\n")


def test_a_file_of_python_without_a_name_in_it(folder):
    assert refused("stats", "nets.py").splitlines()[1:] == [
        "  why: it defines Net, make_model, give_nothing, give_up, Holder, Decider, model, number",
        "  fix: give the name of one: nets.py:Net",
    ]
    (folder / "odd.py").write_text("def :")
    assert refused("show", "odd.py").startswith("Error: cannot read 'odd.py'\n  why: SyntaxError")


@pytest.mark.parametrize("text", ["1x3x", "x3", "1,3", "a-b=3", "3=4", "1.5", "", "scalarx2", "-1"])
def test_an_input_of_another_form(text):
    assert misused("show", "nets.py:Net", f"--input={text}") == (
        f"Error: Invalid value for '-i' / '--input': {text!r} has not the form "
        "[NAME=]SHAPE[:DTYPE], e.g. 1x3x224x224, scalar or ids=2x128:int64"
    )


def test_an_unknown_dtype():
    assert misused("show", "nets.py:Net", "-i", "ids=2:int46") == (
        "Error: Invalid value for '-i' / '--input': 'int46' in 'ids=2:int46' is none of float32, "
        "float64, float16, bfloat16, complex64, complex128, int64, int32, int16, int8, uint8, "
        "uint16, uint32, uint64, bool"
    )


def test_an_input_named_twice():
    words = ["-i", "scale=scalar", "-i", "scale=2"]
    assert misused("show", "nets.py:Net", *words) == "Error: --input gives 'scale' twice."


def test_an_argument_of_another_form():
    assert misused("show", "nets.py:Net", "-a", "width") == (
        "Error: Invalid value for '-a' / '--arg': 'width' has not the form "
        "NAME=VALUE, e.g. depth=50"
    )


def test_an_output_of_unknown_ending():
    told = misused("export", "nets.py:Net", "-o", "graph.jpg")
    assert told.startswith(
        "Error: Invalid value for '-o' / '--output': cannot save a graph as 'graph.jpg': the end "
        "of the name selects the format: .json ("
    )


def test_an_export_to_nowhere():
    assert misused("export", "nets.py:Net", "-i", "2x3") == (
        "Error: Nothing to write: give --logdir FOLDER, -o FILE, or both."
    )


def test_a_module_that_is_not_there():
    assert refused("show", "nowhere.nets:Net") == (
        "Error: cannot import 'nowhere.nets'\n"
        "  why: ModuleNotFoundError: No module named 'nowhere'\n"
        "  fix: run tbscope in the folder that contains it, or give a file: path/to/file.py:Net\n"
    )


def test_a_file_that_is_not_there():
    assert refused("show", "nest.py:Net") == (
        "Error: there is no file 'nest.py'\n  fix: check the path before the colon of TARGET\n"
    )


@pytest.mark.parametrize(
    ("name", "code", "target", "what", "why"),
    [
        (
            *("broken.py", "import not_there", "broken.py:Net"),
            *(
                "cannot import 'broken.py'",
                "ModuleNotFoundError: No module named 'not_there'",
            ),
        ),
        (
            *("broken_module.py", "raise ValueError('two\\nlines')", "broken_module:Net"),
            *("cannot import 'broken_module'", "ValueError: two lines"),
        ),
        (
            *("lazy.py", "def __getattr__(name):\n    raise ImportError('no')", "lazy.py:Net"),
            *("'lazy.py' raised when it was asked for 'Net'", "ImportError: no"),
        ),
    ],
    ids=["a file", "a module", "a lazy package"],
)
def test_code_that_raises(folder, name, code, target, what, why):
    (folder / name).write_text(f"{code}\n")
    assert refused("show", target) == (
        f"Error: {what}\n  why: {why}\n  fix: add --debug to see where\n"
    )


def test_a_lazy_package_that_does_not_know_the_name(folder):
    (folder / "empty.py").write_text("def __getattr__(name):\n    raise AttributeError(name)\n")
    assert refused("show", "empty.py:Net").startswith("Error: 'empty.py' has no 'Net'\n")


def test_a_file_that_is_part_of_a_package(folder):
    (folder / "part.py").write_text("from .nets import Net\n")
    assert refused("show", "part.py:Net") == (
        "Error: cannot import 'part.py'\n"
        "  why: ImportError: attempted relative import with no known parent package\n"
        "  fix: give it as a module: package.module:make_model\n"
    )


def test_a_path_that_is_no_python_file(folder):
    (folder / "some").mkdir()
    (folder / "some" / "notes.txt").write_text("")
    assert refused("show", "some/notes.txt:Net") == (
        "Error: cannot import 'some/notes.txt'\n"
        "  why: its name does not end in .py\n"
        "  fix: give a Python file, or a module's name: package.module:make_model\n"
    )


def test_a_name_that_is_not_in_the_file():
    assert refused("show", "nets.py:make_modle") == (
        "Error: 'nets.py' has no 'make_modle'\n  fix: did you mean 'make_model'?\n"
    )


def test_a_name_that_is_not_in_the_class():
    assert refused("show", "nets.py:Holder.zzzzz") == (
        "Error: 'nets.py' has no 'Holder.zzzzz'\n"
        "  why: <class 'nets.Holder'> has no attribute 'zzzzz'\n"
        "  fix: give the name of a model, or of a function or class that makes one\n"
    )


def test_a_target_that_cannot_give_a_model():
    assert refused("show", "nets.py:number") == (
        "Error: 'number' in 'nets.py' gives no model\n"
        "  why: it is 3\n"
        "  fix: name a model, or a function or class that makes one\n"
    )


def test_a_function_that_gives_no_model():
    assert refused("show", "nets.py:give_nothing") == (
        "Error: give_nothing() in 'nets.py' returned no model\n"
        "  why: it returned None, and a torch.nn.Module is needed\n"
        "  fix: name a function that returns the model, e.g. def make_model(): return Net()\n"
    )


def test_a_function_that_raises():
    assert refused("show", "nets.py:Net", "-a", "width=wide", "-i", "2x3").startswith(
        "Error: Net(width='wide') in 'nets.py' raised\n  why: TypeError: "
    )
    assert refused("show", "nets.py:give_up") == (
        "Error: give_up() in 'nets.py' raised\n"
        "  why: SystemExit: 3\n"
        "  fix: give what it needs as --arg NAME=VALUE, or add --debug to see where\n"
    )


def test_arguments_for_a_model_that_is_made_already():
    assert refused("show", "nets.py:model", "-a", "width=5") == (
        "Error: 'model' in 'nets.py' takes no --arg\n"
        "  why: it is a model already, a Net, and no factory\n"
        "  fix: leave --arg out, or name the class or function that makes the model\n"
    )


def test_inputs_that_the_model_does_not_take():
    message = refused("show", "nets.py:Net", "-i", "scale=2")
    assert message.endswith("  fix: give each tensor as --input [NAME=]SHAPE[:DTYPE]\n")
    message = refused("show", "nets.py:Net")
    assert message.endswith("  fix: give each tensor as --input [NAME=]SHAPE[:DTYPE]\n")


def test_a_model_that_raises_leaves_nothing_behind(folder):
    words = ["-i", "2x3", "-a", "fails=True", "-o", "graph.pb", "--logdir", "runs"]
    message = refused("export", "nets.py:Net", *words)
    assert "  why: RuntimeError: this net fails\n" in message
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["nets.py"]


def test_a_traceback_is_shown_where_it_is_asked_for():
    words = ["show", "nets.py:Net", "-i", "2x3", "-a", "fails=True"]
    done = run_warm("-m", "tbscope", *words)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    done = run_warm("-m", "tbscope", *words, "--debug")
    assert done.returncode == 1
    assert "Traceback (most recent call last):\n" in done.stderr
    assert 'raise RuntimeError("this net fails")' in done.stderr


def test_a_folder_that_is_not_there_is_refused_before_the_model_is_imported():
    assert refused("export", "nowhere:Net", "-o", "a/b/graph.pb") == (
        "Error: cannot write 'a/b/graph.pb'\n"
        "  why: there is no folder 'a/b'\n"
        "  fix: make it first: mkdir -p a/b\n"
    )


def test_a_place_that_cannot_be_written_leaves_nothing_behind(folder):
    (folder / "graph.pb").mkdir()
    result = tbscope("export", "torch.nn:ReLU", "-i", "2", "-o", "graph.pb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: cannot write 'graph.pb'\n"
        "  why: IsADirectoryError: Is a directory\n"
        "  fix: check that the path may be written to and that the disk is not full\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["graph.pb", "nets.py"]


@pytest.mark.parametrize(
    ("words", "path", "why"),
    [
        (["nets.py"], "nets.py", "FileExistsError: File exists"),
        (["nets.py/x"], "nets.py/x", "NotADirectoryError: Not a directory"),
        (["x" * 256], "x" * 256, "OSError: File name too long"),
    ],
)
def test_a_log_folder_that_cannot_be(words, path, why):
    result = tbscope("export", "torch.nn:ReLU", "-i", "2", "--logdir", *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: cannot write to {path}\n  why: {why}\n"
        "  fix: log to another directory: writer = tbscope.SummaryWriter(log_dir)\n"
    )


@pytest.mark.parametrize(
    "words", [("--tag", "net"), ("--step", "1"), ("--run-name", "eval"), ("--overlay", "flops")]
)
def test_what_is_for_the_log_needs_one(words):
    assert misused("export", "nets.py:Net", "-o", "-", *words) == (
        f"Error: {words[0]} is for TensorBoard: give --logdir FOLDER, too."
    )


def test_an_overlay_and_the_graph_under_one_tag():
    words = ["--logdir", "runs", "--tag", "flops", "--overlay", "flops"]
    assert misused("export", "nowhere:Net", *words) == (
        "Error: --tag and --overlay are both 'flops': a tag has one graph."
    )


def test_an_overlay_that_is_not_built_in():
    message = misused("export", "nowhere:Net", "--logdir", "runs", "--overlay", "flop")
    assert message.startswith("Error: Invalid value for '--overlay': 'flop' is not one of 'flops'")


def test_a_step_below_zero():
    message = misused("export", "nowhere:Net", "--logdir", "runs", "--step", "-1")
    assert message == "Error: Invalid value for '--step': -1 is not in the range x>=0."


def test_a_run_that_leads_out_of_the_log_folder_is_refused_before_the_model_is_imported(folder):
    assert refused("export", "nowhere:Net", "--logdir", "runs", "--run-name", "../up") == (
        "Error: a run below the writer's own cannot be called '../up'\n"
        "  why: it is a directory below the log directory, so its name is one part or more "
        "with / between them, none of them empty, '.' or '..', none of more than 255 bytes, "
        'and without ", \\, : and control characters\n'
        "  fix: run_name='eval', or 'eval/large'\n"
    )
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("mode", [(), ("--fake",)])
def test_an_overlay_without_numbers_leaves_nothing_behind(folder, mode):
    words = ["-i", "2", "--logdir", "runs", "-o", "graph.pb", *mode]
    assert refused("export", "torch.nn:ReLU", *words, "--overlay", "time") == (
        "Error: the graph of ReLU has no times\n"
        "  why: nothing was measured when it ran\n"
        "  fix: graph = tbscope.trace(model, input, profile=True)\n"
    )
    assert refused("export", "torch.nn:ReLU", *words, "--overlay", "parameters").endswith(
        "  fix: graph.summary() prints the numbers of the graph\n"
    )
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["nets.py"]


def test_a_pattern_that_matches_nothing():
    assert refused("export", "torch.nn:ReLU", "-i", "2", "-o", "-", "--hide", "a b") == (
        "Error: hide='a b' matches nothing in the graph of ReLU\n"
        "  why: no operation, no class of a module and no qualified name is like it\n"
        "  fix: print(graph) shows the operations, graph.calls the modules\n"
    )


def test_a_result_at_which_no_backward_pass_begins():
    assert refused("show", "torch.nn:Tanh", "-i", "2x3", "--backward") == (
        "Error: the model's result is no loss: it is a tensor of shape (2, 3)\n"
        "  why: a loss is a tensor of one element, and a parameter from which it is computed "
        "requires a gradient\n"
        "  fix: add_graph(model, x, backward=True, loss=lambda out: out.pow(2).mean())\n"
    )


def test_a_model_that_differentiates(folder):
    (folder / "slope.py").write_text(
        "import torch\n"
        "class Slope(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return torch.autograd.grad(super().forward(x).sum(), self.weight)\n"
    )
    words = ["slope.py:Slope", "-a", "in_features=2", "-a", "out_features=1", "-i", "2"]
    message = refused("show", *words)
    assert message.endswith("  fix: the model differentiates in forward: pass grad=True\n")
    assert tbscope("show", *words, "--grad").exit_code == 0


# -- what the model does, and what no option is -----------------------------------------------


@pytest.mark.parametrize("command", [("show",), ("export", "-o", "-")])
def test_a_model_that_ends_the_process_is_an_error(folder, command):
    (folder / "quits.py").write_text(
        "import sys, torch\n"
        "class Quits(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        sys.exit(7)\n"
    )
    assert refused(command[0], "quits.py:Quits", "-i", "2", *command[1:]) == (
        "Error: 'Quits' in 'quits.py' ended the process while it ran\n"
        "  why: SystemExit: 7\n"
        "  fix: take sys.exit() out of the model; add --debug to see where\n"
    )


def test_an_input_for_which_there_is_no_memory():
    message = refused("show", "torch.nn:ReLU", "-i", "999999999999x3")
    assert message.startswith(
        "Error: no input of the size (999999999999, 3) and the type torch.float32 can be made\n"
    )
    assert message.endswith("  fix: give smaller sizes, or fake=True, which takes no memory\n")
    done = tbscope("show", "torch.nn:ReLU", "-i", "999999999999x3", "--fake")
    assert (done.exit_code, "Float(999999999999, 3)" in done.stdout) == (0, True)


@pytest.mark.parametrize("command", ["export", "demo"])
@pytest.mark.parametrize("name", ["", " ", "a\udcffb"])
def test_a_folder_without_a_name(command, name):
    target = ["torch.nn:ReLU", "-i", "2"] if command == "export" else []
    assert misused(command, *target, f"--logdir={name}") == (
        f"Error: Invalid value for '--logdir': {name!r} is no name of a folder, e.g. runs/net"
    )


def test_numbers_that_are_too_large():
    message = misused("show", "torch.nn:ReLU", "-i", "2", "--seed", str(2**64))
    assert message.startswith("Error: Invalid value for '--seed'")
    size = "9" * 5000
    assert "has not the form" in misused("show", "torch.nn:ReLU", "-i", size)
    message = refused("export", "torch.nn:ReLU", "-i", "2", "--logdir", "a", "--step", str(2**63))
    assert message.startswith(f"Error: a graph cannot be of step {2**63}\n")


def test_an_argument_that_is_nested_too_deep_is_a_text():
    value = "(" * 5000
    assert refused("show", "nets.py:Net", "-a", f"width={value}", "-i", "2x3").startswith("Error: ")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (
            ("torch.nn:Embedding", "-a", "num_embeddings=3", "-a", "embedding_dim=2", "-i", "2x16"),
            "Embedding takes whole numbers, got input in float32; give -i 2x16:int64",
        ),
        (
            ("torch.nn:Linear", "-a", "in_features=3", "-a", "out_features=2", "-i", "2x3:int64"),
            "give inputs of the model's dtype: Linear has weight in float32, got input in int64; "
            "give -i 2x3:float32",
        ),
        (
            ("nets.py:Net", "-i", "x=2x3:float64"),
            "give inputs of the model's dtype: Linear[fc] has weight in float32, got input in "
            "float64; give -i x=2x3:float32",
        ),
        (
            ("nets.py:Net", "-i", "2x3:float64", "-i", "scale=scalar"),
            "give inputs of the model's dtype: Linear[fc] has weight in float32, got input in "
            "float64; give it with its type: -i [NAME=]SHAPE:float32",
        ),
    ],
)
def test_an_input_of_another_type_is_told_in_words_of_the_command(words, fix):
    assert refused("show", *words).endswith(f"  fix: {fix}\n")


def test_what_fails_inside_is_one_message_unless_a_traceback_is_asked_for(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("tbscope.ir.graph.graph_to_text", broken)
    words = ["show", "torch.nn:ReLU", "-i", "2"]
    assert refused(*words) == (
        "Error: tbscope itself failed\n"
        "  why: ZeroDivisionError: inside\n"
        "  fix: report it, with what --debug shows\n"
    )
    assert isinstance(tbscope(*words, "--debug").exception, ZeroDivisionError)


def test_an_interrupt_ends_as_a_shell_expects(folder):
    (folder / "slow.py").write_text("raise KeyboardInterrupt\n")
    result = tbscope("show", "slow.py:Net")
    assert (result.exit_code, result.output) == (130, "")
