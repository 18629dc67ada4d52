"""Runs migrations on the connection that the store gives."""

from alembic import context

from anabranch.gateway.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
