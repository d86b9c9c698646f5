"""Every number of the list of hostile inputs has a test: those of tables by their ids, the others by name.

The list is 1 to 80: GGUF 1 to 37, safetensors 38 to 51, config.json 52 to 59, prompt files 60 to 65, records, schemes and
importance matrices 66 to 74, command line and environment 75 to 80. A table's ids start with the number.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

MODULES = ("test_hostile_gguf", "test_hostile_checkpoint", "test_hostile_files")

ELSEWHERE: dict[int, tuple[str, ...]] = {
    9: ("test_hostile_gguf.test_cut_at_every_byte_is_refused", "test_hostile_checkpoint.test_cut_at_every_byte_is_refused"),
    33: ("test_hostile_gguf.test_not_finite_value_is_refused_in_every_type", "test_inspect.test_weights_that_are_not_finite_are_found_by_tensor_and_index"),
    34: ("test_hostile_gguf.test_quantised_source_keeps_its_blocks_and_is_never_requantised",
         "test_quantize.test_a_quantised_source_needs_leave_and_keeps_what_fits"),
    37: ("test_hostile_gguf.test_chat_template_is_copied_with_a_warning_and_never_rendered",),
    47: ("test_hostile_checkpoint.test_layer_indices_and_name_forms",),
    48: ("test_outtypes.test_f16_that_would_overflow_is_refused_with_a_count",),
    51: ("test_hostile_checkpoint.test_sparse_file_of_a_terabyte_is_refused_at_once", "test_hostile_gguf.test_sparse_file_of_a_terabyte_is_refused_at_once",
         "test_convert.test_source_that_shrinks_while_it_is_read_is_refused"),
    57: ("test_hostile_checkpoint.test_code_beside_the_weights_is_never_run",),
    59: ("test_hostile_checkpoint.test_code_beside_the_weights_is_never_run",
         "test_hostile_checkpoint.test_tokenizer_that_is_a_link_out_of_its_folder_is_refused"),
    60: ("test_prompts.test_a_broken_set_is_refused", "test_prompts.test_the_broken_line_is_named",
         "test_prompts.test_a_file_above_the_limit_is_refused_unread", "test_validate_cli.test_a_hostile_prompt_set_is_refused"),
    61: ("test_prompts.test_a_broken_set_is_refused",),
    62: ("test_prompts.test_a_broken_set_is_refused", "test_prompts.test_tokens_that_do_not_fit_the_target_are_refused"),
    63: ("test_prompts.test_tokens_that_do_not_fit_the_target_are_refused", "test_prompts.test_text_without_tokens_is_refused",
         "test_prompts.test_an_id_that_is_there_twice_is_refused_with_both_lines"),
    64: ("test_gate.test_too_few_prompts_are_inconclusive",),
    65: ("test_gate.test_other_prompts_are_not_comparable", "test_record.test_a_record_that_contradicts_itself_is_refused"),
    66: ("test_record.test_a_record_that_contradicts_itself_is_refused", "test_record.test_a_text_that_is_no_record_is_refused",
         "test_record.test_a_record_of_another_schema_is_not_comparable"),
    67: ("test_record.test_a_record_that_contradicts_itself_is_refused",),
    68: ("test_prompts.test_what_is_no_regular_file_is_refused_at_once", "test_hostile_gguf.test_what_is_no_file_is_refused_without_blocking"),
    69: ("test_gate.test_other_conditions_are_not_comparable", "test_validate_cli.test_other_limits_than_the_reference_are_not_comparable"),
    70: ("test_record.test_a_record_that_contradicts_itself_is_refused",),
    71: ("test_validate_cli.test_what_cannot_be_meant_is_refused_before_a_file_is_opened",),
    72: ("test_policy.test_an_unsound_scheme_file_is_refused", "test_policy.test_an_override_that_matches_no_matrix_is_refused",
         "test_hostile_files.test_72_glob_that_backtracks_is_matched_in_time"),
    73: ("test_imatrix.test_an_unsound_gguf_matrix_is_refused", "test_imatrix.test_a_legacy_file_is_refused_at_every_length",
         "test_imatrix.test_a_matrix_of_another_model_is_refused"),
    74: ("test_imatrix.test_files_with_other_tensors_cannot_be_compared", "test_imatrix.test_one_changed_byte_or_key_or_a_missing_imatrix_is_a_verdict_of_no"),
    77: ("test_command_lines.test_a_value_that_cannot_be_meant_is_a_usage_error",),
    78: ("test_hostile_files.test_78_source_that_changes_between_check_and_use_is_noticed",),
    79: ("test_hostile_files.test_79_second_run_to_one_output_stops_at_once",),
}  # fmt: skip
"""Numbers whose tests are no rows of a table."""

WITHOUT = {80: "there is no GPU backend yet"}
"""Numbers that cannot be tested, and why."""


def table_numbers(module: ModuleType) -> set[int]:
    """The numbers that the parametrised ids of a module start with."""
    found = set()
    for function in vars(module).values():
        for mark in getattr(function, "pytestmark", []):
            ids: Any = mark.kwargs.get("ids") if mark.name == "parametrize" else None
            if isinstance(ids, list):
                found |= {int(i.split()[0]) for i in ids if i.split()[0].isdigit()}
    return found


def test_every_number_is_covered() -> None:
    """1 to 80, in a table, by a test of its own, or with the reason why not."""
    found = set().union(*(table_numbers(importlib.import_module(m)) for m in MODULES))

    assert set(range(1, 81)) == found | ELSEWHERE.keys() | WITHOUT.keys()
    assert not WITHOUT.keys() & (found | ELSEWHERE.keys())


@pytest.mark.parametrize("name", sorted({n for names in ELSEWHERE.values() for n in names}))
def test_the_tests_that_are_named_exist(name: str) -> None:
    """A test that was renamed must not leave a number uncovered."""
    module, _, function = name.partition(".")

    assert callable(getattr(importlib.import_module(module), function))
