"""The tables of counters, gauges and histograms, one CSV file for each kind of process."""
