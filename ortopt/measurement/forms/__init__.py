"""The forms whose cost can be measured, as data: of each two small models that compute the same, and the sizes."""
