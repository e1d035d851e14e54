"""Speed, always as a ratio: both sides in the same processes, turn by turn, beside the limit of this machine.

python -m benchmarks            everything, about fifteen minutes
python -m benchmarks --quick    the same with few rounds, about four minutes
python -m benchmarks.notes_figure    the note's comparison: naive split, one device, pipeline, and a sweep
"""
