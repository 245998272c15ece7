"""A small web of real pages on this machine: the countries of the CIA World Factbook, linked, served and searchable."""
