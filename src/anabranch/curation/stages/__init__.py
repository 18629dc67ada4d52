"""The stages of a curation; each module is one."""
