"""Options: signatures, the command and the documentation tell what is declared.

`TBSCOPE_REWRITE_GOLDEN=1 python -m pytest tests/test_options.py` writes the tables of
docs/options.md anew.
"""

import inspect
import os
import re
import typing
from pathlib import Path

import click
import pytest

import tbscope
from tbscope.cli import main
from tbscope.cli.parameters import flag_of, metavar_of
from tbscope.cli.run_target import IN_OTHER_WORDS
from tbscope.errors import ArgumentError
from tbscope.options import (
    DRAWING,
    GATHERING,
    PLACING,
    Adding,
    check_options,
    with_defaults,
)
from tbscope.run_options import RUNNING, WORLD, Tracing
from tbscope.utils.option import Option, check_values, shows_options

ROOT = Path(__file__).parents[1]
GROUPS = {"run": RUNNING, "world": WORLD, "drawing": DRAWING, "place": PLACING, "ranks": GATHERING}
ALL = RUNNING | WORLD | DRAWING | PLACING | GATHERING
FUNCTIONS = [
    tbscope.trace,
    tbscope.add_graph,
    tbscope.add_overlay,
    tbscope.to_graph_def,
    tbscope.SummaryWriter.add_graph,
    tbscope.SummaryWriter.add_overlay,
    tbscope.install,
    tbscope.installed,
]
TAKERS = {
    "trace": (RUNNING, WORLD),
    "add_graph": (RUNNING, WORLD, PLACING, GATHERING, DRAWING),
    "add_overlay": (PLACING, DRAWING),
    "to_graph_def": (DRAWING,),
    "tbscope export": (RUNNING, DRAWING, PLACING),
    "tbscope view": (RUNNING, DRAWING),
    **dict.fromkeys([f"tbscope {name}" for name in ("show", "stats", "find", "lint")], (RUNNING,)),
    "tbscope run": (DRAWING,),
    "install": (DRAWING,),
    "installed": (DRAWING,),
}
COMMANDS = [name for name in TAKERS if name.startswith("tbscope ")]


def declared(taker):
    return {name: option for options in TAKERS[taker] for name, option in options.items()}


def without_tag(function, options):
    """Leave out what an overlay has no default for."""
    overlay = function.__name__ == "add_overlay"
    return {name: option for name, option in options.items() if not (overlay and name == "tag")}


# -- signatures -----------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_a_signature_tells_the_options_with_their_types_and_defaults(function):
    options = without_tag(function, declared(function.__name__))
    parameters = inspect.signature(function).parameters
    told = {name: parameters[name] for name in parameters.keys() & ALL.keys() - {"tag"}}
    told |= {"tag": parameters["tag"]} if "tag" in options else {}
    assert {name: (one.annotation, one.default) for name, one in told.items()} == {
        name: (option.type, option.default) for name, option in options.items()
    }
    assert {one.kind for one in told.values()} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_a_type_checker_reads_the_same_options(function):
    """What the last parameter unpacks are declarations; others stand in the signature."""
    hints = typing.get_type_hints(function)
    (options,) = hints.keys() & {"drawing", "options"}
    (unpacked,) = typing.get_args(hints[options])
    assert unpacked in (tbscope.Drawing, Adding, Tracing)
    names = {*hints, *typing.get_type_hints(unpacked)} - {options}
    assert without_tag(function, declared(function.__name__)).keys() <= names


def test_a_method_tells_its_options_without_self(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        parameters = inspect.signature(writer.add_graph).parameters
    assert next(iter(parameters)) == "model"
    assert parameters["cards"].default is True


def test_what_takes_no_options_cannot_show_them():
    with pytest.raises(TypeError, match="does not end in"):
        shows_options(lambda graph: graph)


@pytest.mark.parametrize("name", DRAWING)
def test_the_long_form_tells_of_each_option_of_a_drawing(name):
    assert re.search(rf"^ +{name}: ", tbscope.Drawing.__doc__, re.MULTILINE)
    assert f"`{name}`" in tbscope.add_graph.__doc__


# -- the command ----------------------------------------------------------------------------


def flags(command):
    """Give the options of a command."""
    _, found, _ = main.resolve_command(None, [command.removeprefix("tbscope ")])
    return [one for one in found.params if isinstance(one, click.Option)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_offers_each_option_with_its_default_and_its_line(command):
    written = {text for one in flags(command) for text in one.opts}
    given = {one.name: one for one in flags(command)}
    for name, option in declared(command).items():
        if name in IN_OTHER_WORDS:
            assert written.issuperset(IN_OTHER_WORDS[name])
            continue
        flag = given.pop(name)
        assert flag.opts == [flag_of(name)]
        assert (flag.default or None) == (option.default or None)
        assert flag.help.startswith(option.help)
        assert tuple(getattr(flag.type, "choices", ())) == option.choices
    assert given.keys().isdisjoint(ALL)


def test_truths_have_opposites_lists_are_repeatable_and_numbers_are_none_below_0():
    given = {one.name: one for one in flags("tbscope export")}
    assert given["cards"].secondary_opts == ["--no-cards"]
    assert given["root"].default is None
    assert [given[name].multiple for name in ("keep", "hide", "tag")] == [True, True, False]
    assert given["step"].type.min == 0


# -- the documentation ----------------------------------------------------------------------


def table(options):
    rows = ["| option | default | command | |", "| --- | --- | --- | --- |"]
    for name, option in options.items():
        default = f"`{option.default!r}`"
        if option.default is None and option.unset:
            default += f": {option.unset}"
        line = option.help.replace("|", r"\|")
        rows.append(f"| `{name}` | {default} | {command_cell(option)} | {line} |")
    return "\n".join(rows)


def command_cell(option):
    if option.name in {**GATHERING, **WORLD}:
        # The command is one process, which torchrun starts none of, and has no functions.
        return ""
    if option.name in IN_OTHER_WORDS:
        return ", ".join(f"`{flag}`" for flag in IN_OTHER_WORDS[option.name])
    flag = flag_of(option.name)
    if bool in (option.type, *typing.get_args(option.type)):
        return f"`{flag}`, `{flag_of(f'no_{option.name}')}`"
    if option.choices:
        return f"`{flag}` " + ", ".join(f"`{choice}`" for choice in option.choices)
    return f"`{flag} {metavar_of(option)}`"


@pytest.mark.parametrize("group", GROUPS)
def test_the_table_in_the_documentation_is_the_declaration(group):
    page = ROOT / "docs" / "options.md"
    between = re.compile(rf"(?<=<!-- {group} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    expected = f"{table(GROUPS[group])}\n"
    if os.environ.get("TBSCOPE_REWRITE_GOLDEN"):
        page.write_text(between.sub(lambda _: expected, page.read_text(), count=1))
    assert between.findall(page.read_text()) == [expected]


def test_readme_shows_each_option_of_a_drawing_and_its_place_with_a_value_that_it_takes():
    section = (ROOT / "README.md").read_text().partition("### How it is drawn")[2]
    shown = dict(re.findall(r"`(\w+)=(.+?)`", section.partition("###")[0]))
    assert shown.keys() == (DRAWING | PLACING).keys()
    for name, text in shown.items():
        check = ALL[name].check
        if check is not None:
            check(eval(text))


# -- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_each_default_is_a_value_of_its_option(name):
    if ALL[name].check is not None:
        ALL[name].check(ALL[name].default)


@pytest.mark.parametrize("name", sorted(DRAWING.keys() - {"root", "templates", "cards"}))
def test_a_value_that_is_none_is_refused_before_the_model_runs(name, tmp_path):
    def model():
        raise AssertionError("it ran")

    wrong = {name: "nonsense"}
    with pytest.raises(ArgumentError, match="nonsense"):
        tbscope.add_graph(tbscope.SummaryWriter(tmp_path), model, **wrong)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("profile", "give profile= to trace or add_graph"),
        ("tag", "give tag= to add_graph"),
        ("styl", "did you mean 'style'?"),
        ("nothing_like_it", "leave nothing_like_it out"),
    ],
)
def test_an_option_that_is_none_of_a_drawing_is_told_where_it_belongs(name, fix):
    with pytest.raises(ArgumentError) as error:
        check_options(**{name: None})
    assert error.value.fix == fix


@pytest.mark.parametrize("options", [{"level": "module", "root": None}, {"keep": ["view"]}, {}])
def test_options_that_are_given_stay_and_others_are_as_declared(options):
    check_options(**options)
    found = with_defaults(options)
    assert found.keys() == DRAWING.keys()
    for name, value in found.items():
        assert value == options.get(name, DRAWING[name].default)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (("a", None, None), ("", None, None)),
        ((None, 0, None), (None, -1, None)),
        ((None, 1, None), (None, True, None)),
        ((None, None, "a/b"), (None, None, "a//b")),
        ((None, None, "a.."), (None, None, "..")),
    ],
)
def test_a_place_is_a_text_a_whole_number_and_a_path_below(right, wrong):
    check_values(PLACING, dict(zip(PLACING, right, strict=True)))
    with pytest.raises(ArgumentError):
        check_values(PLACING, dict(zip(PLACING, wrong, strict=True)))


def test_the_choices_of_an_option_are_the_texts_of_its_type():
    either = typing.Literal["a", "b"]
    assert Option(None, "", type=either | typing.Callable[[str], str] | None).choices == ("a", "b")
    assert Option(None, "", type=str | None).choices == ()
