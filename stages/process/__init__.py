"""What every `stages` process shares: its main, its events, files that appear whole, its memory cap. Uses the
contract.
"""
