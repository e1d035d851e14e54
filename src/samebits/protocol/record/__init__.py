"""The record of a run, `record.jsonl`: its lines and their chain, and how it is read. Plain data, never executed."""
