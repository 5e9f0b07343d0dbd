# SPDX-License-Identifier: Apache-2.0
"""What packing does to the documents of an experiment, before anything is trained."""
