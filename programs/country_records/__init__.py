"""Country records: a few facts about one country, turned into a record in a house format the model is not told."""
