"""Collects the evidence of a program, and judges it by the rules."""
