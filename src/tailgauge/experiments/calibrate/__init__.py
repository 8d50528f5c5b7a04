"""`tailgauge calibrate`: the error of this machine as a client, and a certificate of it."""
