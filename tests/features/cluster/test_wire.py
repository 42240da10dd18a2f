"""Messages arrive whole and in order, and only from peers that have the secret."""

import asyncio
import pickle
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.features.cluster.wire import (
    Address,
    Connection,
    ConnectionLostError,
    Listener,
    connect,
)


class Bomb:
    """What must never be unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a stranger's bytes were unpickled",))


async def listening(serve) -> Listener:
    return await Listener(serve).open("127.0.0.1")


MESSAGES = st.lists(st.one_of(st.binary(max_size=5000), st.text(), st.integers()), max_size=20)


@settings(max_examples=20, deadline=None)
@given(MESSAGES)
def test_messages_arrive_whole_and_in_order(messages):
    async def main():
        heard = []

        async def serve(connection: Connection) -> None:
            for _ in messages:
                heard.append(await connection.receive())
            connection.send("done")

        listener = await listening(serve)
        connection = await connect(listener.address)
        for message in messages:
            connection.send(message)
        assert await connection.receive() == "done"
        assert heard == messages
        with pytest.raises(ConnectionLostError):
            await connection.receive()
        await listener.close()

    asyncio.run(main())


@pytest.mark.parametrize("proof", [b"", b"x" * 31, b"x" * 32, pickle.dumps(Bomb()) * 2])
async def test_a_peer_without_the_secret_is_neither_served_nor_unpickled(proof):
    served = []

    async def serve(connection: Connection) -> None:
        served.append(connection)

    listener = await listening(serve)
    host, port, _ = listener.address
    reader, writer = await asyncio.open_connection(host, port)
    await reader.readexactly(32)
    bomb = pickle.dumps(Bomb())
    writer.write(proof + len(bomb).to_bytes(4, "big") + bomb)
    writer.write_eof()
    assert await reader.read() == b""  # cut
    assert not served
    writer.transport.abort()
    wrong = listener.address._replace(secret=b"another secret")
    with pytest.raises(ConnectionLostError):
        await connect(wrong)
    assert not served
    await listener.close()


@pytest.mark.parametrize("answer", ["a pickle", "what it was sent"])
async def test_a_process_on_the_port_of_another_is_not_unpickled(answer):
    """It does not have the secret, and sends back what it has, or a pickle at once."""

    async def serve(reader, writer) -> None:
        nonce = bytes(32)
        writer.write(nonce)
        proof, ours = await reader.readexactly(32), await reader.readexactly(32)
        bomb = pickle.dumps(Bomb())
        bomb = len(bomb).to_bytes(4, "big") + bomb
        sent = b"" if answer == "a pickle" else proof + ours
        writer.write(sent + bomb * 9)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionLostError, match="nobody listens"):
        await connect(Address("127.0.0.1", port, b"secret"))
    server.close()


async def test_every_connection_has_a_proof_of_its_own():
    listener = await listening(lambda _: asyncio.sleep(0))
    host, port, _ = listener.address
    nonces = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection(host, port)
        nonces.append(await reader.readexactly(32))
        writer.close()
    assert all(a != b for a, b in pairwise(nonces))
    await listener.close()


async def test_nobody_there_is_an_error_of_its_own():
    listener = await listening(lambda _: asyncio.sleep(0))
    await listener.close()
    with pytest.raises(ConnectionLostError, match="nobody listens at"):
        await connect(listener.address)


async def test_a_peer_that_does_not_read_is_cut_off(monkeypatch):
    """Otherwise unsent messages would fill the sender's memory."""
    monkeypatch.setattr("cutaway.features.cluster.wire._MOST_UNSENT", 1 << 16)
    stuck = asyncio.Event()
    listener = await listening(lambda _: stuck.wait())
    connection = await connect(listener.address)
    for _ in range(1000):
        connection.send(b"x" * (1 << 16))
        if connection._writer.is_closing():
            break
    else:
        pytest.fail("it was never cut off")
    with pytest.raises(ConnectionLostError):
        await connection.receive()
    await listener.close()


async def test_a_length_that_no_message_has_ends_the_connection():
    lost = asyncio.get_running_loop().create_future()

    async def serve(connection: Connection) -> None:
        try:
            await connection.receive()
        except ConnectionLostError as error:
            lost.set_result(error)

    listener = await listening(serve)
    connection = await connect(listener.address)
    connection._writer.write(b"\xff\xff\xff\xff")
    assert "is no message" in str(await lost)
    connection.cut()
    await listener.close()
