"""Whose requests go where: a run has the target that was named, in Locust's order, and none that was not."""

import pytest

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


@pytest.fixture(scope="module")
def seen(run_script, tmp_path_factory):
    return run_script("locust_app/scripts/locustfile.py", tmp_path_factory.mktemp("locustfile"))


def test_the_target_is_the_first_that_is_named_in_locusts_order(seen):
    of_a = {
        "class", "class of a schedule", "option before class", "option before class of a schedule",
        "option before class and scenario", "two classes, an option",
    }  # fmt: skip
    of_b = {"set before class", "option and the same set", "scenario"}
    assert {name for name, url in seen["targets"].items() if url == A} == of_a
    assert {name for name, url in seen["targets"].items() if url == B} == of_b


def test_no_run_goes_to_the_simulated_endpoint_unless_it_was_named(seen):
    simulated = {name for name, url in seen["targets"].items() if url == "simulated"}
    assert simulated == {"simulated by the scenario", "simulated by the class"}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("option and set", f"two targets are named: {A} as host and {B} by --set target.url: name one"),
        ("class and scenario", f"two targets are named: {A} by Streaming.host and {B} by the scenario: choose with --host"),
        ("none", 'no target is named: set Chat.host = "http://...", or add --host URL'),
        ("an empty option", "no target is named"),
        ("none in the scenario", "no target is named: set Streaming.host"),
        ("no address", "Chat.host: "),
        ("two classes", "Chat.host and Talk.host differ, and a run has one target"),
        ("two schedules", "expected one user class, got 2 (Streaming, Other)"),
        ("both kinds", "expected one user class, got 2 (Streaming, Chat)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(seen, case, text):
    assert text in seen["targets"][case]


def test_tasks_have_no_plan_and_take_their_settings_from_the_class(seen):
    assert seen["tasks"] == {
        "name": "my-chat", "file": "My chat.py", "process": "tasks", "target": ["openai", 7], "model": "m",
        "retry": "polite", "planned": 0, "expected": [],
        "endless": True, "warmup": [0.0, 2.0], "tables": ["Chat"], "ends": 9.0, "limit": 50,
    }  # fmt: skip


def test_users_whose_requests_would_not_be_measured_are_refused_with_what_to_change(seen):
    found = seen["nothing_measured"]

    assert found["ours first"] == A
    assert found["fast"].endswith("nothing is measured: leave out FastHttpUser")
    assert found["http"].endswith("nothing is measured: leave out HttpUser")
    assert (
        "Chat.chat: Locust calls tasks as plain functions: write def without async"
        in found["async"]
    )
    assert "Talk.chat: " in found["async in a set"]
    assert found["no users"].startswith("-u 0 starts no user")


def test_options_of_run_alone_name_where_locust_has_them(seen):
    messages = seen["options_of_run"]

    assert (
        "locust: error: --slo: here objectives are in a file of --scenario, or --set 'slo.a="
        in messages["--slo x"]
    )
    assert (
        "--model: here it is the model on the class, or --set target.model=NAME"
        in messages["--model=m"]
    )
    assert "only `tailgauge run` has dry runs" in messages["--dry-run"]
    assert "unrecognized arguments: --nothing" in messages["--nothing"]


def test_mistakes_in_a_class_are_named_with_it(seen):
    found = seen["mistakes"]

    assert (
        "Chat.traffic: prompt_tokens: a task says itself what it asks, and when" in found["traffic"]
    )
    assert "Chat.traffic: retries" in found["unknown"]
    assert found["protocol"].startswith("ScenarioError: Chat.protocol: expected")
    assert (
        "a locustfile with a StreamingUser makes these requests: locust -f FILE --scenario"
        in found["process"]
    )


def test_the_start_form_names_a_target_but_not_one_for_the_keys_of_another(seen):
    found = seen["start_form"]

    assert [
        found[name]
        for name in ("as it is", "another", "the same while it runs", "a key of the command line")
    ] == [""] * 4
    assert "no target is named" in found["none"]
    assert found["while it runs"] == f"the run in progress has the target {A}: stop it first"
    for case in ("a key", "a key and no target"):
        assert (
            found[case]
            == f"target.api_key_env (PATH) would send a secret to {B}: restart Locust with --host {B}"
        )


def test_the_paths_and_models_of_a_file_decide_about_the_calls_before_the_first_task(seen):
    assert seen["posts"] == {
        "openai": ["openai", "m-1"],
        "anthropic": ["anthropic", "m-2"],
        "both": ["anthropic", None],
        "neither": ["anthropic", None],
        "broken": ["anthropic", None],
        "class first": ["anthropic", "mine"],
    }
