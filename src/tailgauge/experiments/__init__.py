"""Commands that plan runs of their own, look at them, and decide something: calibrate, headroom, hedging, models, checkup."""
