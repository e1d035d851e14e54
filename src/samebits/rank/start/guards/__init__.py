"""Around torch, in a rank's process: what a script does that cannot fit its ranks is refused before it waits.

when_imported("torch.distributed", guard)    wrapping: when the script imports it, or at once
a guard replaces one function of torch by    meeting_guard, device_guard, nested_guard
decision = rules(what was asked, what is)    in the guards themselves, and protocol/backends: pure, without torch
raise its sentence, or continue with its value
"""
