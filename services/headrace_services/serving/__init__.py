"""What every server of Headrace does for its callers before a method sees a call, and the limits that it imposes.

A caller is a stranger until it has identified itself: with a token, or with the certificate of its connection.
Strangers may ask for a server's health, and join with a join token. Everything else that they send is rejected
unread.

    a connection → a call → who calls → its request → the method → its answer is received

Each step has limits (`limits`), for all strangers together and for each known caller. No limit for strangers
applies to a single connection or address, because behind one address there may be a whole cluster. They share
places (`places`). If none is free, a stranger at the address with the most places loses one. So somebody who wants
many takes them only from himself.

gRPC does not report that a client does not read, and does not close a connection while the client answers its
pings. So `connections` closes connections, through the socket's descriptor.
"""
