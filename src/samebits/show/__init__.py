"""What people look at: the page of a run (a report, or live), and the demo. Plain Python; reads run folders only.

story      events, metrics and summary of a run folder -> what a page shows, as JSON values
report     that, with the page's own files -> one HTML file
server     the same page live, on 127.0.0.1
"""
