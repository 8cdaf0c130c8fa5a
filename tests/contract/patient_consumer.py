"""The consumer that brokers of others are tested with, too: see ``qworker.testing.contract.patient``."""

from qworker.testing.contract.patient import PatientConsumer, patient

__all__ = ["PatientConsumer", "patient"]
