"""numerics="portable": this process computes what every x86-64 CPU computes, and shows it by known answers, or stops."""
