"""`samebits bench`: run one script under several strategies, and compare. Plain Python, without torch.

plan(options) -> configurations                            plan
one run that is not counted, then rounds, interleaved      bench
the ranks' files -> times, waits, memory               measures
-> Results, with spread                                    results
sentences, two tables, a picture                           reasons, report, picture
"""
