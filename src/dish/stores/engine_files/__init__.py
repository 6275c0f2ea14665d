"""Files that load codes into other engines: rows in bulk, the definition of a collection, and a query.

``collection`` says what is exported, ``writer`` writes a folder, and there is a module per engine.
"""
