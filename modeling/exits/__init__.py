"""ELBERT: every layer has an exit, and a rule on the answers so far says who exits."""
