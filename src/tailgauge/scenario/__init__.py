"""The scenario file and the price file: TOML in, frozen typed values out.

Must not know: how traffic is sent, who runs it.
"""
