"""Around torch, in a rank's process: what a script does that cannot fit its ranks is refused before it waits.

after_import("torch.distributed", guard)         when the script imports it, or at once
a guard replaces one function of torch by        meeting_guard, backend_guard, device_guard, nested_guard
decision = rules(what was asked, what is)    meeting_rules, backend_rules, device_rules: pure, without torch
raise its sentence, or go on with its value
"""
