"""The flags that two commands have in common."""

from __future__ import annotations

from inspect import Parameter, signature

from stepwell.replay.command import replay_command
from stepwell.replay.plan_command import plan_command
from stepwell.replay.shared import played


def test_both_commands_have_the_common_flags_and_may_have_a_default_of_their_own() -> None:
    common = signature(played).parameters
    for command, duration in ((replay_command, 3600.0), (plan_command, 1800.0)):
        found = signature(command).parameters
        assert common.keys() <= found.keys()
        assert found["duration"].default == duration
        assert not [p for p in found.values() if p.kind is Parameter.VAR_KEYWORD]
        assert all(found[name].default == common[name].default for name in common if name != "duration")
